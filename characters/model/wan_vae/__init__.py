"""The video autoencoder of Wan 2.1 and 2.2: encoder, streaming decoder, checkpoints."""
