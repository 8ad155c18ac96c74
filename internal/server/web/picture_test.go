package web_test

import (
	"bytes"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/chromedp/chromedp"
)

// picturesDir is the environment variable with the folder for pictures of the page. Without it none are taken.
const picturesDir = "GUESTPROBE_PAGE_PICTURES"

// picture saves what the window shows, if pictures are to be taken.
func (w *window) picture(name string) {
	w.t.Helper()
	dir := os.Getenv(picturesDir)
	if dir == "" {
		return
	}
	b, err := chromedp.Run(w.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		w.t.Fatal(err)
	}
	im, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		w.t.Fatal(err)
	}
	var out bytes.Buffer
	if err := png.Encode(&out, reduceColors(im)); err != nil {
		w.t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), out.Bytes(), 0o666); err != nil {
		w.t.Fatal(err)
	}
}

// reduceColors returns a picture with its 256 most frequent colors, which makes a small file of a page with few colors.
func reduceColors(im image.Image) *image.Paletted {
	full := image.NewRGBA(im.Bounds())
	draw.Draw(full, full.Bounds(), im, im.Bounds().Min, draw.Src)
	count, pixels := map[color.RGBA]int{}, make([]color.RGBA, 0, len(full.Pix)/4)
	for i := 0; i < len(full.Pix); i += 4 {
		c := color.RGBA{full.Pix[i], full.Pix[i+1], full.Pix[i+2], full.Pix[i+3]}
		pixels = append(pixels, c)
		count[c]++
	}
	colors := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		if count[a] != count[b] {
			return count[b] - count[a]
		}
		return slices.Compare([]byte{a.R, a.G, a.B}, []byte{b.R, b.G, b.B})
	})
	var p color.Palette
	for _, c := range colors[:min(len(colors), 256)] {
		p = append(p, c)
	}
	out, index := image.NewPaletted(im.Bounds(), p), map[color.RGBA]uint8{}
	for _, c := range colors {
		index[c] = uint8(p.Index(c))
	}
	for i, c := range pixels {
		out.Pix[i] = index[c]
	}
	return out
}
