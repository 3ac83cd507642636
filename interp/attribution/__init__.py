"""What each part contributes: direct logit attribution, lenses, self-repair, and scores from gradients."""
