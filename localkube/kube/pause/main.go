// Command pause waits until it receives a signal to stop. It holds the namespaces of a pod, so each pod runs one. It is a separate
// program, because the localkube binary would take tens of megabytes for each pod.
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
