package probe

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// TestStackDocumented: how much of the interrupted stack a detour takes is what
// docs/optimization.md says.
func TestStackDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/optimization.md")
	if err != nil {
		t.Fatal(err)
	}
	deep := func(stack int, user bool) int {
		return newStageFrame([]*Stage{{Stack: stack}}, user, &guest.Profile{}).deep
	}
	thousands := func(n int) string { return fmt.Sprintf("%d,%03d", n/1000, n%1000) }
	for _, want := range []string{
		fmt.Sprintf("%d bytes at CPL3, %d at CPL0", deep(0, true), deep(0, false)),
		fmt.Sprintf("which is %s at most (`MaxStageStack`;", thousands(MaxStageStack)),
		fmt.Sprintf("kernel stack is %s bytes deeper at most", thousands(deep(MaxStageStack, false))),
	} {
		if !strings.Contains(string(doc), want) {
			t.Errorf("docs/optimization.md does not say %q", want)
		}
	}
}
