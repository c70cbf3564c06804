module virtual-kubelet/dev/spdy-peer

go 1.26.0

require github.com/moby/spdystream v0.5.1
