// Makes new rules apply also to sockets with which processes looked up names before.

package firewall

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// These are attributes of the kernel's conntrack messages (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctTupleOrig  = 1
	ctMark       = 8
	ctTupleProto = 2
	ctProtoNum   = 1
	ctProtoPort  = 3 // destination port
)

const headBytes = 4

const (
	ctGet    = netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | 1)
	ctDelete = netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | 2)
)

// ForgetLookups deletes the conntrack entries of the pod's DNS lookups over UDP. The kernel applies NAT rules only to new flows.
// Without this, a process that keeps its socket, as resolvers of servers do, would keep the redirection from before the switch.
func (f *Firewall) ForgetLookups() error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	defer func() { _ = conn.Close() }()
	flows, err := conn.Execute(message(ctGet, netlink.Dump, unix.AF_UNSPEC))
	if err != nil {
		return fmt.Errorf("conntrack: %w", err)
	}
	for _, flow := range flows {
		if len(flow.Data) < headBytes {
			continue
		}
		if tuple := lookup(flow.Data[headBytes:]); tuple != nil {
			attribute := netlink.Attribute{Type: netlink.Nested | ctTupleOrig, Data: tuple}
			_, _ = conn.Execute(message(ctDelete, netlink.Acknowledge, flow.Data[0], attribute)) // fails if the flow has expired
		}
	}
	return nil
}

// message returns a request to the kernel's conntrack, which has a head with an address family, then attributes.
func message(kind netlink.HeaderType, flags netlink.HeaderFlags, family byte, attributes ...netlink.Attribute) netlink.Message {
	encoded, _ := netlink.MarshalAttributes(attributes) // fails only for attributes of more than 64 KiB
	head := []byte{family, unix.NFNETLINK_V0, 0, 0}
	return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request | flags}, Data: append(head, encoded...)}
}

// lookup returns the tuple of a flow of the pod to port 53 over UDP, or nil for other flows, such as those of the sidecar.
func lookup(flow []byte) []byte {
	attributes := parts(flow)
	if mark := attributes[ctMark]; len(mark) == 4 && binary.BigEndian.Uint32(mark) == Mark {
		return nil
	}
	protocol := parts(parts(attributes[ctTupleOrig])[ctTupleProto])
	number, port := protocol[ctProtoNum], protocol[ctProtoPort]
	if len(number) != 1 || number[0] != unix.IPPROTO_UDP || len(port) != 2 || binary.BigEndian.Uint16(port) != 53 {
		return nil
	}
	return attributes[ctTupleOrig]
}

// parts returns the values of attributes by type, or an empty map if they are invalid.
func parts(encoded []byte) map[uint16][]byte {
	found := map[uint16][]byte{}
	attributes, err := netlink.UnmarshalAttributes(encoded)
	if err != nil {
		return found
	}
	for _, each := range attributes {
		found[each.Type&^(netlink.Nested|netlink.NetByteOrder)] = each.Data
	}
	return found
}
