// Command pause does nothing until it gets a signal to stop. It holds a pod's namespaces, once per pod, so it is a program of
// its own: the one with all of Kubernetes in it would take tens of megabytes each time.
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
