"""What `mindformers/dataset/dataloader/hf_dataloader.py` takes at its import."""

split_dataset_by_node = None
