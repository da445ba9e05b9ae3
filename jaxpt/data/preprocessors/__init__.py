"""SeqIO preprocessors: one module for each objective, and those that several share.

Objectives name them through `jaxpt.data.calls.preprocessors`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors: what `preprocessors.masked_lm` is
    from jaxpt.data.preprocessors import bart as bart
    from jaxpt.data.preprocessors import batched as batched
    from jaxpt.data.preprocessors import bidirectional_lm as bidirectional_lm
    from jaxpt.data.preprocessors import cooccurrences as cooccurrences
    from jaxpt.data.preprocessors import denoising as denoising
    from jaxpt.data.preprocessors import documents as documents
    from jaxpt.data.preprocessors import features as features
    from jaxpt.data.preprocessors import fill_in_the_middle as fill_in_the_middle
    from jaxpt.data.preprocessors import labelled as labelled
    from jaxpt.data.preprocessors import masked_lm as masked_lm
    from jaxpt.data.preprocessors import mass as mass
    from jaxpt.data.preprocessors import mbart as mbart
    from jaxpt.data.preprocessors import permutation_lm as permutation_lm
    from jaxpt.data.preprocessors import salient_spans as salient_spans
    from jaxpt.data.preprocessors import sentence_pairs as sentence_pairs
    from jaxpt.data.preprocessors import span_corruption as span_corruption
    from jaxpt.data.preprocessors import translations as translations
    from jaxpt.data.preprocessors import ul2 as ul2
    from jaxpt.data.preprocessors import unilm as unilm
    from jaxpt.data.preprocessors import units as units
    from jaxpt.data.preprocessors import windows as windows
    from jaxpt.data.preprocessors import word2vec as word2vec
    from jaxpt.data.preprocessors import words as words
