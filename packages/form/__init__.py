"""The form of a package, as the Hugging Face hub has it: names, versions, labels of variants, metadata."""
