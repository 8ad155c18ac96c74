//go:build linux && amd64

package bpf

// What tests outside of the package need, because they use internal/dev/bpftest.
var (
	NewNative      = newNative
	LoadTestObject = loadObject
)

// Stack is the machine stack that compiled programs run on.
func (n *native) Stack() []byte { return n.mem[nativeStackOff:nativeStackTop] }
