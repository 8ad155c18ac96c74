package probe

import "testing"

// TestNotifyUnusedAlone: a function that is to be called when nothing uses its stages is called at
// once if that is so, without a look at the others that wait: a detach adds one for each of
// thousands of probes. The others are called after the next collection.
func TestNotifyUnusedAlone(t *testing.T) {
	var e Engine
	var called []string
	notify := func(name string, s *Stage) {
		if err := e.NotifyUnused(func() { called = append(called, name) }, s); err != nil {
			t.Fatal(err)
		}
	}
	used := &Stage{uses: 1}
	notify("used", used)
	used.uses = 0
	notify("free", &Stage{})
	if len(called) != 1 || called[0] != "free" {
		t.Errorf("called are %q, want only the function of unused stages", called)
	}
	e.collector.flush() // as after a collection
	if len(called) != 2 || called[1] != "used" {
		t.Errorf("after a collection %q were called, want all", called)
	}
}
