package bpf

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// TestDocs holds docs/programs.md, and the layouts in docs/engine.md, to the tables and constants of the code.
func TestDocs(t *testing.T) {
	var doc string
	for _, page := range []string{"programs", "engine"} {
		b, err := os.ReadFile("../../docs/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		doc += string(b)
	}
	rows := 0
	for _, l := range strings.Split(doc, "\n") {
		if f := strings.Split(l, " | "); len(f) >= 3 && (f[2] == "guest" || f[2] == "host" || f[2] == "host |") {
			rows++
		}
	}
	if rows != len(helpers) {
		t.Errorf("%d rows of helpers, there are %d", rows, len(helpers))
	}
	want := []string{
		fmt.Sprintf("| instruction slots | %d |", MaxSlots),
		fmt.Sprintf("| frames, bytes of stack in each | %d, %d |", MaxFrames, FrameSize),
		fmt.Sprintf("| maps of a program | %d |", MaxMaps),
		fmt.Sprintf("| ring records reserved at a time | %d |", MaxReservations),
		fmt.Sprintf("in one call | %d |", maxRead),
		fmt.Sprintf("M = %#x", uint64(hashMul)),
		fmt.Sprintf("window of %d slots", hashWindow),
		fmt.Sprintf("tries %d times in the guest, %d on the host", guestTries, hashTries),
		fmt.Sprintf("at most %d tries", ringTries),
		fmt.Sprintf("%d bytes of header", mapHeader),
		fmt.Sprintf("Segment %d is the context, %d the stack, %d to %d the reserved ring records, %d and up", segContext, segStack, segRecords, segMaps-1, segMaps),
		fmt.Sprintf("| %d | %d | stack |", blkStack, StackSize),
		fmt.Sprintf("| %d | %d each | segment table", blkSegs, segSize),
	}
	for off, text := range map[int]string{
		blkBusy: "1 while", blkCPU: "vCPU", blkBudget: "budget left", blkRSP: "stack pointer", blkFault: "fault of", blkPC: "slot of",
		blkAddr: "address of the last", blkRuns: "runs |", blkFailed: "runs that", blkMissed: "calls missed", blkFuncIP: "address of the probed", blkRandom: "state of the random",
		blkTSC: "clock", blkOpen: "records reserved", blkRecords: "four times", blkTemp: "temporaries",
		blkAnswers: "four counts of runs", blkFrames: "where the caller's frame is", blkWalk: "address of the stack's length",
	} {
		found := false
		for _, l := range strings.Split(doc, "\n") {
			found = found || strings.HasPrefix(l, fmt.Sprintf("| %d | ", off)) && strings.Contains(l, "| "+text)
		}
		if !found {
			t.Errorf("the run block's offset %d has no row about %q", off, text)
		}
	}
	for off, text := range map[int]string{hdrHead: "head", hdrTail: "tail", hdrLost: "records lost"} {
		want = append(want, fmt.Sprintf("| %d | 8 | ", off))
		if !strings.Contains(doc, text) {
			t.Errorf("nothing about the header's %s", text)
		}
	}
	for _, h := range helpers {
		place := h.Place.String()
		want = append(want, strings.TrimSpace(fmt.Sprintf("| %d | %s | %s | %s", h.ID, h.Name, place, h.Why)))
	}
	for i, name := range x86.PtNames {
		want = append(want, fmt.Sprintf("%s %d", name, 8*i))
	}
	doc = strings.ReplaceAll(doc, "\n", " ")
	for _, w := range want {
		if !strings.Contains(doc, w) {
			t.Errorf("docs/programs.md and docs/engine.md do not say %q", w)
		}
	}
}
