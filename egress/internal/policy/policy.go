package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// These are the modes of a policy, as in task.toml.
const (
	Public    = "public"
	NoNetwork = "no-network"
	Allowlist = "allowlist"
)

// MaxHosts is the maximum number of entries in a policy.
const MaxHosts = 10_000

// ErrHosts marks an error in a policy's hosts, which a retry cannot fix.
var ErrHosts = errors.New("hosts")

// Policy is a policy that the operator requests.
type Policy struct {
	Mode string `json:"mode"`
	// Hosts are names, wildcards ("*.NAME"), addresses and CIDRs in lower case. Only the mode Allowlist has hosts.
	Hosts []string `json:"hosts,omitempty"`
	// Gateway tells whether the model gateway can be reached, even with mode NoNetwork.
	Gateway bool `json:"gateway,omitempty"`
}

// Endpoint is a name and a port.
type Endpoint struct {
	Name string
	Port uint16
}

// Rules is a compiled policy.
type Rules struct {
	Public   bool
	Prefixes []netip.Prefix
	names    map[string]bool
	suffixes []string
	gateway  *Endpoint
}

// Compile checks a policy, and returns its rules. gateway is the model gateway's endpoint, or nil.
func Compile(wanted Policy, gateway *Endpoint) (*Rules, error) {
	rules := &Rules{Public: wanted.Mode == Public, names: map[string]bool{}}
	switch {
	case wanted.Mode != Public && wanted.Mode != NoNetwork && wanted.Mode != Allowlist:
		return nil, fmt.Errorf("mode: must be %s, %s or %s; got %q", Public, NoNetwork, Allowlist, wanted.Mode)
	case wanted.Mode != Allowlist && len(wanted.Hosts) > 0:
		return nil, fmt.Errorf("%w: only with mode %s; got mode %s", ErrHosts, Allowlist, wanted.Mode)
	case len(wanted.Hosts) > MaxHosts:
		return nil, fmt.Errorf("%w: at most %d; got %d", ErrHosts, MaxHosts, len(wanted.Hosts))
	case wanted.Gateway && gateway == nil:
		return nil, fmt.Errorf("gateway: this pod knows no model gateway")
	}
	if wanted.Gateway {
		rules.gateway = gateway
	}
	for _, host := range wanted.Hosts {
		if err := rules.add(host); err != nil {
			return nil, err
		}
	}
	return rules, nil
}

func (r *Rules) add(host string) error {
	if address, err := netip.ParseAddr(host); err == nil {
		r.Prefixes = append(r.Prefixes, netip.PrefixFrom(address, address.BitLen()))
		return nil
	}
	if strings.Contains(host, "/") {
		prefix, err := netip.ParsePrefix(host)
		if err != nil {
			return fmt.Errorf("%w: %q is not a CIDR", ErrHosts, host)
		}
		r.Prefixes = append(r.Prefixes, prefix.Masked())
		return nil
	}
	suffix, wildcard := strings.CutPrefix(host, "*.")
	if name := Normalize(suffix); name == "" || strings.Contains(name, "*") {
		return fmt.Errorf("%w: %q is not a host name", ErrHosts, host)
	}
	if wildcard {
		r.suffixes = append(r.suffixes, "."+Normalize(suffix))
	} else {
		r.names[Normalize(host)] = true
	}
	return nil
}

// Normalize returns a name in lower case without its last dot.
func Normalize(name string) string {
	return strings.TrimSuffix(strings.ToLower(name), ".")
}

// AllowsName reports whether connections to a name are allowed, to any port.
func (r *Rules) AllowsName(name string) bool {
	if r.names[name] {
		return true
	}
	for _, suffix := range r.suffixes {
		if len(name) > len(suffix) && strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

// AllowsEndpoint reports whether connections to this port of a name are allowed.
func (r *Rules) AllowsEndpoint(name string, port uint16) bool {
	return r.AllowsName(name) || (r.gateway != nil && *r.gateway == Endpoint{name, port})
}

// Resolves reports whether a name may be looked up.
func (r *Rules) Resolves(name string) bool {
	return r.AllowsName(name) || (r.gateway != nil && r.gateway.Name == name)
}

// AllowsAddress reports whether the policy lists the address itself or a CIDR that contains it.
func (r *Rules) AllowsAddress(address netip.Addr) bool {
	for _, prefix := range r.Prefixes {
		if prefix.Contains(address) {
			return true
		}
	}
	return false
}

// Closed reports whether the policy allows no connection at all.
func (r *Rules) Closed() bool {
	return !r.Public && len(r.Prefixes) == 0 && len(r.names) == 0 && len(r.suffixes) == 0 && r.gateway == nil
}

// LeadsInside reports whether an address is a loopback, link-local, multicast, unspecified or broadcast address. An allowed name
// must not give access to such an address, unless the policy lists the address. For example, a cloud's metadata server has a
// link-local address.
func LeadsInside(address netip.Addr) bool {
	return address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsMulticast() || address.IsUnspecified() ||
		address == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
