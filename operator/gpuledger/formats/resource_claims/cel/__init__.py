"""The Common Expression Language as Kubernetes has it for devices: checked by Google's library, evaluated here."""
