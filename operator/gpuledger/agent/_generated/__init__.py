"""The kubelet's protocols, generated from the .proto files beside this one."""
