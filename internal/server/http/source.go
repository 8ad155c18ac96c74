package http

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/source"
)

// readSource reads the debug information of the program: from the file at path,
// or from the image itself if that is "".
func (p bootable) readSource(o *options) (*debuginfo.Info, error) {
	switch {
	case o.debug != "":
		return debuginfo.Open(o.debug, p.buildID())
	case o.besideErr != nil: // from the start: the confined daemon may not look again
		return nil, o.besideErr
	case p.linux != nil:
		return nil, fmt.Errorf("%w: give guestprobed --debug FILE, the kernel's vmlinux with it", debuginfo.ErrNone)
	case p.image == nil:
		return nil, fmt.Errorf("%w: the guest's program is not known", debuginfo.ErrNone)
	}
	return readImageSource(p.image)
}

// readImageSource reads the debug information in an image.
func readImageSource(img *guest.Image) (*debuginfo.Info, error) {
	return debuginfo.OpenImage(img.Path, func(name string) ([]byte, error) { return img.SectionData(name, debuginfo.MaxSection) })
}

// sourceOf returns the debug information of the guest's program, and its slide.
func sourceOf(g Guest) (*debuginfo.Info, uint64, error) {
	info, err := g.Source()
	if err != nil {
		return nil, 0, &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "the guest's source is not known", Detail: err.Error()}
	}
	by, err := source.Slide(info, g.Image())
	return info, by, err
}

// addSource notes the source of each instruction.
func addSource(d *api.Disas, info *debuginfo.Info, by uint64) {
	for i := range d.Insts {
		if file, line, ok := info.Line(uint64(d.Insts[i].Addr) - by); ok {
			d.Insts[i].Source = fmt.Sprintf("%s:%d", file, line)
		}
	}
}

// AddSource notes the source of each instruction of a function of img.
func AddSource(d *api.Disas, img *guest.Image) error {
	info, err := readImageSource(img)
	if err == nil {
		addSource(d, info, 0)
	}
	return err
}
