package policy

import (
	"net/netip"
	"strings"
	"testing"
)

func compiled(t *testing.T, wanted Policy) *Rules {
	t.Helper()
	rules, err := Compile(wanted, &Endpoint{"gateway.system.svc", 8080})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func TestNamesAreAllowedExactlyAndByWildcard(t *testing.T) {
	rules := compiled(t, Policy{Mode: Allowlist, Hosts: []string{"pypi.org", "*.Example.com"}})
	for name, want := range map[string]bool{
		"pypi.org": true, "www.pypi.org": false, "xpypi.org": false, "pypi.org.evil.net": false,
		"a.example.com": true, "a.b.example.com": true, "example.com": false, ".example.com": false, "aexample.com": false, "": false,
	} {
		if got := rules.AllowsName(name); got != want {
			t.Errorf("AllowsName(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestAddressesAreAllowedByPrefix(t *testing.T) {
	rules := compiled(t, Policy{Mode: Allowlist, Hosts: []string{"10.1.0.0/16", "192.0.2.7", "2001:db8::/32"}})
	for address, want := range map[string]bool{
		"10.1.2.3": true, "10.2.0.1": false, "192.0.2.7": true, "192.0.2.8": false, "2001:db8::1": true, "2001:db9::1": false,
	} {
		if got := rules.AllowsAddress(netip.MustParseAddr(address)); got != want {
			t.Errorf("AllowsAddress(%s) = %v, want %v", address, got, want)
		}
	}
}

func TestTheGatewayIsOnePortOfOneName(t *testing.T) {
	rules := compiled(t, Policy{Mode: NoNetwork, Gateway: true})
	if !rules.AllowsEndpoint("gateway.system.svc", 8080) || !rules.Resolves("gateway.system.svc") {
		t.Error("the gateway is refused")
	}
	for _, port := range []uint16{80, 8081, 443} {
		if rules.AllowsEndpoint("gateway.system.svc", port) {
			t.Errorf("port %d of the gateway is allowed", port)
		}
	}
	if rules.AllowsName("gateway.system.svc") || rules.Closed() {
		t.Error("all ports of the gateway are allowed, or it counts as closed")
	}
}

func TestOnlyAPolicyWithoutAnythingIsClosed(t *testing.T) {
	for _, each := range []struct {
		policy Policy
		closed bool
	}{
		{Policy{Mode: NoNetwork}, true},
		{Policy{Mode: Allowlist}, true},
		{Policy{Mode: Public}, false},
		{Policy{Mode: Allowlist, Hosts: []string{"a.b"}}, false},
		{Policy{Mode: Allowlist, Hosts: []string{"10.0.0.0/8"}}, false},
		{Policy{Mode: Allowlist, Hosts: []string{"*.b"}}, false},
	} {
		if got := compiled(t, each.policy).Closed(); got != each.closed {
			t.Errorf("Closed() of %+v = %v", each.policy, got)
		}
	}
}

func TestBadPoliciesAreRefusedByName(t *testing.T) {
	many := make([]string, MaxHosts+1)
	for _, each := range []struct {
		policy  Policy
		gateway *Endpoint
		part    string
	}{
		{Policy{Mode: "open"}, nil, `got "open"`},
		{Policy{}, nil, `got ""`},
		{Policy{Mode: Public, Hosts: []string{"a"}}, nil, "only with mode allowlist"},
		{Policy{Mode: Allowlist, Hosts: many}, nil, "at most 10000"},
		{Policy{Mode: Allowlist, Hosts: []string{"10.0.0.0/99"}}, nil, `"10.0.0.0/99" is not a CIDR`},
		{Policy{Mode: Allowlist, Hosts: []string{"*."}}, nil, `"*." is not a host name`},
		{Policy{Mode: Allowlist, Hosts: []string{"a.*.b"}}, nil, `"a.*.b" is not a host name`},
		{Policy{Mode: NoNetwork, Gateway: true}, nil, "knows no model gateway"},
	} {
		if _, err := Compile(each.policy, each.gateway); err == nil || !strings.Contains(err.Error(), each.part) {
			t.Errorf("Compile(%v) = %v, want %q", each.policy.Mode, err, each.part)
		}
	}
}

func TestNamesMustNotLeadInside(t *testing.T) {
	for address, inside := range map[string]bool{
		"127.0.0.1": true, "169.254.169.254": true, "::1": true, "fe80::1": true, "0.0.0.0": true, "224.0.0.1": true,
		"255.255.255.255": true, "10.0.0.1": false, "192.0.2.1": false, "2001:db8::1": false,
	} {
		if got := LeadsInside(netip.MustParseAddr(address)); got != inside {
			t.Errorf("LeadsInside(%s) = %v", address, got)
		}
	}
}
