// Command dns is the cluster's DNS server: CoreDNS with the few plugins that a cluster without access to other networks can use. It
// is a separate program, because CoreDNS defines global flags that the other components must not have.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// the order in which plugins handle a request
	dnsserver.Directives = []string{"bind", "ready", "errors", "cache", "kubernetes", "template"}
	coremain.Run()
}
