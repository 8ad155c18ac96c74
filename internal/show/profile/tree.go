package profile

import (
	"slices"
	"strings"

	pprof "github.com/google/pprof/profile"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Node is a function in a flame graph, called by its parent.
type Node struct {
	Name     string
	Kernel   bool
	Value    int64 // of it and the functions that it has called
	Base     int64 // the same in the profile that this one is compared with
	Self     int64 // of Value: its own
	Children []*Node

	index map[string]*Node
}

// baseLabel marks the samples of the profile that another one is compared with,
// as in go tool pprof; their values are negative.
const baseLabel = "pprof::base"

// frame is a function on a stack.
type frame struct {
	name   string
	kernel bool
}

// frames returns the frames of a sample, the outermost first. The task's name
// comes before them, if there is one.
func frames(s *pprof.Sample) (out []frame) {
	if comm := s.Label[labelComm]; len(comm) > 0 {
		out = append(out, frame{name: comm[0]})
	}
	for _, l := range slices.Backward(s.Location) {
		f := frame{kernel: l.Mapping != nil && l.Mapping.File == kernelMapping}
		if len(l.Line) == 0 {
			f.name = unknown
			out = append(out, f)
		}
		for _, line := range slices.Backward(l.Line) { // the last one contains the others, which are inlined
			if f.name = unknown; line.Function != nil && line.Function.Name != "" {
				f.name = line.Function.Name
			}
			out = append(out, f)
		}
	}
	return out
}

// value returns the value of a sample with this index, and whether the sample
// belongs to the base.
func value(s *pprof.Sample, i int) (v int64, base bool) {
	v = s.Value[i]
	if b := s.Label[baseLabel]; len(b) > 0 && b[0] == "true" {
		return -v, true
	}
	return v, false
}

// Tree returns the root of the calls in a profile, with values of this index.
// Children are sorted by name.
func Tree(p *pprof.Profile, i int) *Node {
	root := &Node{Name: "all"}
	for _, s := range p.Sample {
		v, base := value(s, i)
		root.put(frames(s), v, base)
	}
	root.sort()
	return root
}

// Fold builds the tree of stacks that arrive one by one, with how often each was
// seen. The tree is the same as Tree of their profile. The zero value is ready.
// It belongs to one goroutine.
type Fold struct{ root Node }

// Add adds a stack.
func (t *Fold) Add(s api.Stack) {
	var out []frame
	if s.Task != nil && s.Task.Comm != "" {
		out = append(out, frame{name: s.Task.Comm})
	}
	if s.Cut {
		out = append(out, frame{more, len(s.Frames) == 0 || !s.Frames[len(s.Frames)-1].User})
	}
	for _, f := range slices.Backward(s.Frames) {
		out = append(out, frame{function(f), !f.User})
	}
	t.root.put(out, int64(s.Count), false)
}

// Root returns the root. Nothing may be added after that.
func (t *Fold) Root() *Node {
	t.root.Name = "all"
	t.root.sort()
	return &t.root
}

// put adds a stack, outermost first.
func (n *Node) put(stack []frame, v int64, base bool) {
	n.add(v, base)
	for _, f := range stack {
		n = n.child(f)
		n.add(v, base)
	}
	if !base {
		n.Self += v
	}
}

func (n *Node) add(v int64, base bool) {
	if base {
		n.Base += v
		return
	}
	n.Value += v
}

func (n *Node) child(f frame) *Node {
	key := f.name
	if f.kernel {
		key += kernelMark
	}
	c := n.index[key]
	if c == nil {
		c = &Node{Name: f.name, Kernel: f.kernel}
		if n.index == nil {
			n.index = map[string]*Node{}
		}
		n.index[key], n.Children = c, append(n.Children, c)
	}
	return c
}

func (n *Node) sort() {
	slices.SortFunc(n.Children, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range n.Children {
		c.sort()
	}
	n.index = nil
}

// depth is how many levels of nodes there are.
func (n *Node) depth() (d int) {
	for _, c := range n.Children {
		d = max(d, c.depth())
	}
	return d + 1
}
