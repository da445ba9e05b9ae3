"""Transforms as SeqIO itself runs it, unpacked: what our loader is compared with."""

from jaxpt.data._tf import seqio, tf
from jaxpt.data.seqio_tasks import bind, calls_for


def make_task(name, source, transforms, features, vocabulary):
    """A SeqIO Task: source → offline transforms → seqio.CacheDatasetPlaceholder → online transforms.

    Args:
      name: letters, digits, `_` and `:`.
      source: the documents.
      transforms: an objective's preprocessors.
      features: what `objective.data_spec(length).features` says of them.
      vocabulary: for tokenizing, and of the output features.

    Returns:
      The task, not registered.

    Raises:
      UserError: a source of token ids, and preprocessors that want text.
    """
    offline = calls_for(transforms, source)
    online = [bind(call, vocabulary) for call in transforms.online]
    return seqio.Task(
        name,
        seqio.FunctionDataSource(lambda split, shuffle_files: source.dataset(split), ["train", "validation"]),
        preprocessors=[
            *(bind(call, vocabulary, source=source) for call in offline),
            seqio.CacheDatasetPlaceholder(),
            *online,
        ],
        output_features={
            feature: seqio.Feature(vocabulary, add_eos=False, dtype=tf.as_dtype(dtype), rank=len(shape))
            for feature, (shape, dtype) in features.items()
        },
    )
