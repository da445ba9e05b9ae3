"""Generation and scoring as functions of parameters and ids: the decoding engine, likelihoods, masks, embeddings."""
