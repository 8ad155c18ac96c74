package report

import (
	"container/heap"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/internal/show/timeline"
)

// Count is how often a value was seen.
type Count struct {
	Value string `json:"value"`
	Count uint64 `json:"count"`

	// Over is by how much Count may be too high: with more different values than
	// are kept, a new value replaces the rarest one and takes over its count.
	Over uint64 `json:"over,omitempty"`
}

// budget is how many values all tops may keep together.
type budget struct{ left int }

// maxValues is how many values one top keeps, and maxValue how long they are.
const (
	maxValues = 1000
	maxValue  = 120
)

// top counts values, and keeps the most frequent ones. It keeps all of up to
// maxValues different ones. Beyond that it uses the Space-Saving algorithm,
// which keeps each value that is seen in more than a maxValues-th of all cases.
type top struct {
	budget *budget
	slots  slots
	at     map[string]*slot
	total  uint64
	over   bool // there were more values than are kept
}

type slot struct {
	Count
	index int
}

// slots is a heap with the rarest value first.
type slots []*slot

// Len, Less, Swap, Push and Pop are heap.Interface.
func (s slots) Len() int           { return len(s) }
func (s slots) Less(i, j int) bool { return s[i].Count.Count < s[j].Count.Count }
func (s slots) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}
func (s *slots) Push(x any) { x.(*slot).index = len(*s); *s = append(*s, x.(*slot)) }
func (s *slots) Pop() any   { panic("BUG: no value is taken away") }

func newTop(b *budget) *top { return &top{budget: b, at: map[string]*slot{}} }

// add counts a value. A value longer than maxValue counts as its beginning.
func (t *top) add(value string) {
	t.total++
	if len(value) > maxValue {
		value = strings.ToValidUTF8(timeline.Cut(value, maxValue), "") + "..."
	}
	if s := t.at[value]; s != nil {
		s.Count.Count++
		heap.Fix(&t.slots, s.index)
		return
	}
	if len(t.slots) < maxValues && t.budget.left > 0 {
		t.budget.left--
		s := &slot{Count: Count{Value: strings.Clone(value), Count: 1}}
		t.at[s.Value] = s
		heap.Push(&t.slots, s)
		return
	}
	t.over = true
	if len(t.slots) == 0 {
		return
	}
	s := t.slots[0]
	delete(t.at, s.Value)
	s.Count = Count{Value: strings.Clone(value), Count: s.Count.Count + 1, Over: s.Count.Count}
	t.at[s.Value] = s
	heap.Fix(&t.slots, 0)
}

// mostFrequent returns the most frequent values, up to n, and how often others were seen at least.
func (t *top) mostFrequent(n int) (out []Count, others uint64) {
	out = []Count{}
	for _, s := range t.slots {
		out = append(out, s.Count)
	}
	slices.SortFunc(out, func(a, b Count) int {
		if a.Count != b.Count {
			if a.Count > b.Count {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Value, b.Value)
	})
	out = out[:min(n, len(out))]
	shown := uint64(0)
	for _, c := range out {
		shown += c.Count
	}
	return out, t.total - min(shown, t.total)
}
