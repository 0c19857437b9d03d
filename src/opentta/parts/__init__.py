"""What methods are made of: losses, optimisers, memories, priors, views, the ladder, the affine."""
