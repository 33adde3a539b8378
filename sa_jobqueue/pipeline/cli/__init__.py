"""The pipeline's commands of `sa-jobqueue`: archive, writes."""
