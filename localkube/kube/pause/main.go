// Command pause does nothing until it receives SIGINT or SIGTERM. One instance per pod holds the pod's namespaces. It is a separate
// program because the binary with all Kubernetes components would take tens of megabytes per pod.
package main

import (
	"context"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
}
