// Gets the original destination of a redirected connection from the kernel.

package proxy

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

const originalDestination = 80 // SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST

// original returns the address to which the client connected, before the firewall redirected the connection to the proxy.
func original(conn *net.TCPConn) (netip.AddrPort, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	var found netip.AddrPort
	var failed error
	is4 := conn.LocalAddr().(*net.TCPAddr).IP.To4() != nil
	err = raw.Control(func(fd uintptr) {
		if is4 { // x/sys has no function for sockaddr_in, so it is read as an IPv6Mreq, which is large enough
			var value *unix.IPv6Mreq
			if value, failed = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, originalDestination); failed == nil {
				bytes := value.Multiaddr
				found = netip.AddrPortFrom(netip.AddrFrom4([4]byte(bytes[4:8])), binary.BigEndian.Uint16(bytes[2:4]))
			}
			return
		}
		var value *unix.IPv6MTUInfo
		if value, failed = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, originalDestination); failed == nil {
			number := binary.NativeEndian.AppendUint16(nil, value.Addr.Port) // the bytes are in network order
			found = netip.AddrPortFrom(netip.AddrFrom16(value.Addr.Addr), binary.BigEndian.Uint16(number))
		}
	})
	if err == nil {
		err = failed
	}
	return found, err
}
