// Command runner is PID 1 of a trial's container (docs/internals/runner-protocol.md). Other subcommands prepare a pod's
// volumes, or connect the operator to PID 1.
//
// Open main.go first: it lists the subcommands. install.go copies this program or a directory, and volumes.go fills a
// service's volumes. Then open internal/serve, which is PID 1, and internal/session, which handles its requests.
package main
