// Package chart draws counts: sparklines, histograms and heat maps, as text for
// all kinds of terminals and as SVG.
package chart
