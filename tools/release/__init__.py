"""What makes the files of a release, and describes and compares them."""
