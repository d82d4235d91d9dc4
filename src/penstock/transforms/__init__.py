"""What happens to a value between decoding and batching: crops, resizes, resampling."""
