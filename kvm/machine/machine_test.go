package machine

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTinyGuestRuns(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, asm(say("hello\nhalf"), exitCode(0x1234567), hltForever), nil), Memory: 16 << 20})
	if s := m.State(); s.Phase != PhaseCreated || s.VCPUs[0].RIP != tinyText || s.VCPUs[0].Activity != VCPUParked {
		t.Errorf("new: %+v", s)
	}
	s := run(t, m)
	if s.Phase != PhaseExited || s.ExitCode != 0x1234567 {
		t.Errorf("state %+v, want exited with 0x1234567", s)
	}
	lines, _ := m.Console().History()
	if diff := cmp.Diff([]string{"hello", "half~"}, texts(lines)); diff != "" {
		t.Errorf("console (-want +got):\n%s", diff)
	}
}
