"""The numerical troubles of training: ranges, overflow, where a NaN was born, and how gradients flow."""
