//! Whether pods could run here: what `virtual-kubelet doctor` asks of this provider.
