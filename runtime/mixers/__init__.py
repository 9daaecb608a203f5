"""Token mixers: attention, latent attention, state spaces, delta nets, RWKV."""
