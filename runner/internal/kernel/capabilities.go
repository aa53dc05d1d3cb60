// Reads which capabilities this process has.

package kernel

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// These are the numbers of capabilities.
const (
	CapChown       = 0
	CapDacOverride = 1
	CapFowner      = 3
	CapFsetid      = 4
	CapMknod       = 27
	CapSetfcap     = 31
)

// Capabilities is a set of capabilities, one bit for each.
type Capabilities uint64

// Has returns whether the set contains a capability.
func (c Capabilities) Has(capability int) bool { return c>>capability&1 != 0 }

// OwnCapabilities returns the effective capabilities of this process.
func OwnCapabilities() (Capabilities, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if digits, found := strings.CutPrefix(line, "CapEff:"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(digits), 16, 64)
			return Capabilities(set), err
		}
	}
	return 0, fmt.Errorf("/proc/self/status has no capabilities")
}
