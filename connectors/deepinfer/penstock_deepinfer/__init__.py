"""A Penstock worker around DeepInfer's offline Python API."""
