// The Go original as a contestant of the bench: its nodeutil package, with a provider in memory that runs and stops
// pods at once and says so at once. Nothing here is slower than it must be: what is measured is the original's core.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/nodeutil"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	name := flag.String("node", "bench", "name of the node")
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "credentials")
	unlimited := flag.Bool("unlimited", false, "lift the client's limit")
	workers := flag.Int("workers", 0, "workers for pods; 0 keeps nodeutil's default, the number of processors")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *name, *kubeconfig, *unlimited, *workers); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name, kubeconfig string, unlimited bool, workers int) error {
	client, err := connect(kubeconfig, unlimited)
	if err != nil {
		return err
	}
	options := []nodeutil.NodeOpt{nodeutil.WithClient(client)}
	if workers > 0 {
		options = append(options, func(config *nodeutil.NodeConfig) error {
			config.NumWorkers = workers
			return nil
		})
	}
	// No node provider: nodeutil's own then marks the node Ready.
	open := func(config nodeutil.ProviderConfig) (nodeutil.Provider, node.NodeProvider, error) {
		room := v1.ResourceList{
			v1.ResourceCPU:    resource.MustParse("100k"),
			v1.ResourceMemory: resource.MustParse("100Ti"),
			v1.ResourcePods:   resource.MustParse("100k"),
		}
		config.Node.Status.Capacity = room
		config.Node.Status.Allocatable = room
		return &memory{pods: map[string]*v1.Pod{}}, nil, nil
	}
	virtual, err := nodeutil.NewNode(name, open, options...)
	if err != nil {
		return err
	}
	return virtual.Run(ctx)
}

// connect makes the client as nodeutil does, which leaves client-go's limit in place: 5 requests a second, 10 in a burst.
func connect(kubeconfig string, unlimited bool) (kubernetes.Interface, error) {
	if !unlimited {
		return nodeutil.ClientsetFromEnv(kubeconfig)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	// Below zero means no limit at all.
	config.QPS = -1
	return kubernetes.NewForConfig(config)
}
