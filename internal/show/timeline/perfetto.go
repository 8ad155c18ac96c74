package timeline

import (
	"bufio"
	"io"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Fields of Perfetto's messages, by their names in its protos/perfetto/trace.
const (
	tracePacket = 1 // Trace.packet

	packetClockSnapshot = 6
	packetTimestamp     = 8
	packetSequenceID    = 10
	packetTrackEvent    = 11
	packetInterned      = 12
	packetSequenceFlags = 13
	packetDescriptor    = 60
	packetFirst         = 87 // first_packet_on_sequence

	snapshotClock   = 1
	snapshotPrimary = 2 // primary_trace_clock
	clockID         = 1
	clockTimestamp  = 2

	descriptorUUID     = 1
	descriptorName     = 2
	descriptorProcess  = 3
	descriptorThread   = 4
	descriptorParent   = 5
	descriptorCounter  = 8
	descriptorOrdering = 11
	descriptorRank     = 12
	processPID         = 1
	processName        = 6
	threadPID          = 1
	threadTID          = 2
	threadName         = 5

	eventAnnotation  = 4 // debug_annotations
	eventType        = 9
	eventNameIID     = 10
	eventTrack       = 11
	eventCategory    = 22
	eventCategoryIID = 3
	eventName        = 23
	eventCounter     = 30
	eventCallstack   = 55

	annotationNameIID = 1
	annotationUint    = 3
	annotationInt     = 4
	annotationString  = 6
	annotationPointer = 7
	annotationName    = 10

	stackFrame    = 1
	frameFunction = 1
	frameFile     = 2
	frameLine     = 3

	internedCategories  = 1
	internedEvents      = 2
	internedAnnotations = 3
	internedIID         = 1
	internedName        = 2
)

// Values of these fields.
const (
	clockRealtime = 1
	clockBoottime = 6 // the default of packets without one

	flagCleared = 1 // incremental state begins here
	flagNeeds   = 2 // the packet refers to it

	typeBegin   = 1
	typeEnd     = 2
	typeInstant = 3
	typeCounter = 4

	orderingExplicit = 3
)

// perfettoPID is the process that contains all tasks of a guest as threads,
// because Perfetto has no other term for a whole machine. A guest's task with
// this number is its main thread.
const perfettoPID = 1

// Tracks that represent groups of others; the tracks of a trace are counted from
// 1 on.
const (
	uuidCPUs = 1<<32 + iota
	uuidCounters
)

// perfetto writes packets of TrackEvent, one after the other. Each is written
// once.
type perfetto struct {
	tracks *tracks
	w      *bufio.Writer

	packet, body, part, leaf, interned []byte // buffers for messages in progress
	names                              [internedAnnotations + 1]map[string]uint64
	values                             []value
	began                              bool
}

// maxInterned bounds how many names of a kind get numbers, and maxName their
// length. Other names are written each time.
const (
	maxInterned = 1 << 14
	maxName     = 256
)

func newPerfetto(w io.Writer) *perfetto {
	p := &perfetto{w: bufio.NewWriterSize(w, 64<<10)}
	for kind := internedCategories; kind <= internedAnnotations; kind++ {
		p.names[kind] = map[string]uint64{}
	}
	p.tracks = newTracks(p)
	return p
}

// Write writes the packets of a record.
func (p *perfetto) Write(r *Record) error { return p.tracks.write(r) }

// Close writes the buffered data: a trace is complete after each packet.
func (p *perfetto) Close() error { return p.w.Flush() }

// put writes the finished packet.
func (p *perfetto) put() error {
	p.packet = uintField(p.packet, packetSequenceID, 1)
	flags := uint64(flagNeeds)
	if !p.began {
		p.began = true
		p.packet = uintField(p.packet, packetFirst, 1)
		flags |= flagCleared
	}
	p.packet = uintField(p.packet, packetSequenceFlags, flags)
	p.part = protowire.AppendTag(p.part[:0], tracePacket, protowire.BytesType)
	p.part = protowire.AppendVarint(p.part, uint64(len(p.packet)))
	if _, err := p.w.Write(p.part); err != nil {
		return err
	}
	_, err := p.w.Write(p.packet)
	return err
}

// start writes the clocks of the times: the guest's and the wall clock.
func (p *perfetto) start(s *api.Start, at int64) error {
	clock := func(b []byte, id, ns uint64) []byte {
		p.leaf = uintField(p.leaf[:0], clockID, id)
		p.leaf = uintField(p.leaf, clockTimestamp, ns)
		return bytesField(b, snapshotClock, p.leaf)
	}
	p.body = clock(p.body[:0], clockBoottime, uint64(at))
	if wall := s.Epoch.UnixNano() + s.TimeNS; wall > 0 {
		p.body = clock(p.body, clockRealtime, uint64(wall))
	}
	p.body = uintField(p.body, snapshotPrimary, clockBoottime)
	p.packet = bytesField(uintField(p.packet[:0], packetTimestamp, uint64(at)), packetClockSnapshot, p.body)
	return p.put()
}

// track describes a track.
func (p *perfetto) track(t *track) error {
	p.body = uintField(p.body[:0], descriptorUUID, t.id)
	switch {
	case t.kind == trackGuest:
		p.leaf = uintField(p.leaf[:0], processPID, perfettoPID)
		p.body = bytesField(p.body, descriptorProcess, textField(p.leaf, processName, t.title))
		if err := p.describe(); err != nil {
			return err
		}
		for _, group := range []struct {
			id   uint64
			name string
		}{{uuidCPUs, "vCPUs"}, {uuidCounters, "maps"}} {
			p.body = uintField(p.body[:0], descriptorUUID, group.id)
			p.body = uintField(textField(p.body, descriptorName, group.name), descriptorParent, t.id)
			p.body = uintField(p.body, descriptorOrdering, orderingExplicit)
			if err := p.describe(); err != nil {
				return err
			}
		}
		return nil
	case t.kind == trackTask && t.pid > 0 && t.lane == 0:
		p.leaf = uintField(p.leaf[:0], threadPID, perfettoPID)
		p.leaf = uintField(p.leaf, threadTID, uint64(t.pid))
		p.body = bytesField(p.body, descriptorThread, textField(p.leaf, threadName, t.title))
		return p.describe()
	}
	p.body = textField(p.body, descriptorName, t.title)
	parent, rank := uint64(1), uint64(0)
	switch t.kind {
	case trackCPU:
		parent, rank = uuidCPUs, uint64(t.cpu*(maxLanes+1)+t.lane)
	case trackCounter:
		parent = uuidCounters
		p.body = bytesField(p.body, descriptorCounter, nil)
	}
	p.body = uintField(p.body, descriptorParent, parent)
	p.body = uintField(p.body, descriptorRank, rank)
	return p.describe()
}

func (p *perfetto) describe() error {
	p.packet = bytesField(p.packet[:0], packetDescriptor, p.body)
	return p.put()
}

// event writes an event of a track. A slice is written as its beginning and its
// end; readers sort them by time.
func (p *perfetto) event(e *item) error {
	of := [...]uint64{itemInstant: typeInstant, itemSlice: typeBegin, itemCounter: typeCounter}[e.kind]
	p.interned = p.interned[:0]
	p.body = uintField(p.body[:0], eventType, of)
	p.body = uintField(p.body, eventTrack, e.on.id)
	if e.kind == itemCounter {
		p.body = uintField(p.body, eventCounter, uint64(e.value))
	} else {
		p.body = p.name(p.body, internedEvents, eventNameIID, eventName, e.name)
		if e.group != "" {
			p.body = p.name(p.body, internedCategories, eventCategoryIID, eventCategory, e.group)
		}
		p.values = values(p.values[:0], e)
		for _, v := range p.values {
			p.body = bytesField(p.body, eventAnnotation, p.annotation(v))
		}
		if e.hit != nil && len(e.hit.Stack) > 0 {
			p.body = bytesField(p.body, eventCallstack, p.stack(e.hit.Stack))
		}
	}
	if err := p.writeEvent(e.at); err != nil || e.kind != itemSlice {
		return err
	}
	p.interned = p.interned[:0]
	p.body = uintField(p.body[:0], eventType, typeEnd)
	p.body = uintField(p.body, eventTrack, e.on.id)
	return p.writeEvent(e.at + e.length)
}

// writeEvent writes the finished event.
func (p *perfetto) writeEvent(ns int64) error {
	p.packet = uintField(p.packet[:0], packetTimestamp, uint64(ns))
	if len(p.interned) > 0 {
		p.packet = bytesField(p.packet, packetInterned, p.interned)
	}
	p.packet = bytesField(p.packet, packetTrackEvent, p.body)
	return p.put()
}

// name adds a name as its number, which the first packet with the name defines,
// or as text.
func (p *perfetto) name(b []byte, kind int, iid, plain protowire.Number, name string) []byte {
	known := p.names[kind]
	n, ok := known[name]
	switch {
	case ok:
		return uintField(b, iid, n)
	case len(known) >= maxInterned || len(name) > maxName:
		return textField(b, plain, name)
	}
	n = uint64(len(known) + 1)
	known[name] = n
	entry := textField(uintField(nil, internedIID, n), internedName, name)
	p.interned = bytesField(p.interned, protowire.Number(kind), entry)
	return uintField(b, iid, n)
}

// annotation encodes a value of an event.
func (p *perfetto) annotation(v value) []byte {
	b := p.name(p.leaf[:0], internedAnnotations, annotationNameIID, annotationName, v.name)
	switch v.kind {
	case valueSigned:
		b = uintField(b, annotationInt, v.number)
	case valueUnsigned:
		b = uintField(b, annotationUint, v.number)
	case valueHex:
		b = uintField(b, annotationPointer, v.number)
	default:
		b = textField(b, annotationString, v.text)
	}
	p.leaf = b
	return b
}

// stack encodes a stack of frames, the outermost first, as in Perfetto.
func (p *perfetto) stack(frames []api.Frame) (b []byte) {
	for i := len(frames) - 1; i >= 0; i-- {
		f := frames[i]
		frame := textField(nil, frameFunction, functionName(f))
		if file, line, ok := cutLine(f.Source); ok {
			frame = uintField(textField(frame, frameFile, file), frameLine, line)
		}
		b = bytesField(b, stackFrame, frame)
	}
	return b
}

func uintField(b []byte, field protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func bytesField(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

// textField adds a text, and replaces invalid UTF-8, which a guest may have
// written.
func textField(b []byte, field protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), strings.ToValidUTF8(v, "\ufffd"))
}
