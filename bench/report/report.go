// Package report writes what the benchmarks found: tables in Markdown, and a plot
// of each as SVG.
package report

import (
	"fmt"
	"image/color"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Section is a part of the results.
type Section struct {
	Title string
	Text  string // what was measured, and how
	Table Table
	Plot  *Plot
	// Targets are what was aimed at, and what is.
	Targets []Target
}

// Table has a head and rows of the same length.
type Table struct {
	Head []string
	Rows [][]string
}

// Add appends a row.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case float64:
			row[i] = Number(c)
		default:
			row[i] = fmt.Sprint(c)
		}
	}
	t.Rows = append(t.Rows, row)
}

// Number rounds to three figures.
func Number(n float64) string {
	switch {
	case n >= 100:
		return fmt.Sprintf("%.0f", n)
	case n >= 10:
		return fmt.Sprintf("%.1f", n)
	default:
		return fmt.Sprintf("%.2f", n)
	}
}

// Target is a ratio that was aimed at.
type Target struct {
	What     string
	Aim      float64
	AtMost   bool // else at least
	Measured float64
}

func (t Target) String() string {
	sign, met := "≥", t.Measured >= t.Aim
	if t.AtMost {
		sign, met = "≤", t.Measured <= t.Aim
	}
	verdict := "**missed**"
	if met {
		verdict = "met"
	}
	return fmt.Sprintf("| %s | %s %s | %s | %s |", t.What, sign, Number(t.Aim), Number(t.Measured), verdict)
}

// Plot is bars, or lines over a scale of tens.
type Plot struct {
	File   string // without .svg
	Unit   string
	Names  []string // of the bars
	Bars   []float64
	Lines  []Line
	XTitle string
}

// Line is a measure over a size.
type Line struct {
	Name string
	X, Y []float64
}

// Median of rounds; the slice is sorted.
func Median(rounds []float64) float64 {
	slices.Sort(rounds)
	return rounds[len(rounds)/2]
}

// Machine tells on what, and of which commit, the results are.
func Machine() string {
	model := "unknown CPU"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(text); found != nil {
			model = string(found[1])
		}
	}
	commit, _ := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	redis, _ := exec.Command("redis-server", "--version").Output()
	version := regexp.MustCompile(`v=(\S+)`).FindSubmatch(redis)
	name := "unknown"
	if version != nil {
		name = string(version[1])
	}
	return fmt.Sprintf("%d CPUs (%s), %s, Redis %s, commit %s", runtime.NumCPU(), model, runtime.Version(), name, strings.TrimSpace(string(commit)))
}

// Write writes RESULTS.md and plots/ into a folder.
func Write(folder string, sections []Section) error {
	var b strings.Builder
	b.WriteString("# Results\n\nWritten by `make bench`. Subjects take turns in every round; figures are medians of the\nrounds, ratios are of one run. " +
		"Load generator, servers and Redis share the machine:\n" + Machine() + ".\n")
	for _, s := range sections {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", s.Title, strings.TrimSpace(s.Text))
		if s.Plot != nil {
			if err := s.Plot.Save(filepath.Join(folder, "plots")); err != nil {
				return fmt.Errorf("plot %s: %w", s.Plot.File, err)
			}
			fmt.Fprintf(&b, "![%s](plots/%s.svg)\n\n", s.Title, s.Plot.File)
		}
		fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(s.Table.Head, " | "), "---|"+strings.Repeat("---:|", len(s.Table.Head)-1))
		for _, row := range s.Table.Rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
		if len(s.Targets) > 0 {
			b.WriteString("\n| target | aim | measured | |\n|---|---:|---:|---|\n")
			for _, t := range s.Targets {
				fmt.Fprintln(&b, t)
			}
		}
	}
	return os.WriteFile(filepath.Join(folder, "RESULTS.md"), []byte(b.String()), 0o644)
}

var colors = []color.Color{
	color.RGBA{0x1f, 0x77, 0xb4, 0xff}, color.RGBA{0xd6, 0x5f, 0x00, 0xff}, color.RGBA{0x2c, 0x8c, 0x4a, 0xff}, color.RGBA{0x7a, 0x4f, 0xa3, 0xff},
}

// Save writes the plot as SVG into a folder.
func (p *Plot) Save(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	// The width of a fixed-width font is the same whichever the viewer has.
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Mono"}
	canvas := plot.New()
	canvas.BackgroundColor = color.White
	file := filepath.Join(folder, p.File+".svg")
	if p.Bars != nil {
		// From the bottom up, so that the first is on top.
		values := plotter.Values(slices.Clone(p.Bars))
		names := slices.Clone(p.Names)
		slices.Reverse(values)
		slices.Reverse(names)
		bars, err := plotter.NewBarChart(values, vg.Points(12))
		if err != nil {
			return err
		}
		bars.Horizontal, bars.Color, bars.LineStyle.Width = true, colors[0], 0
		canvas.Add(bars)
		canvas.NominalY(names...)
		canvas.X.Label.Text, canvas.X.Min, canvas.X.Max = p.Unit, 0, 1.05*slices.Max(p.Bars)
		return canvas.Save(8*vg.Inch, vg.Length(len(names))*vg.Points(20)+vg.Inch, file)
	}
	most := 0.0
	for i, l := range p.Lines {
		most = max(most, slices.Max(l.Y))
		points := make(plotter.XYs, len(l.X))
		for j := range l.X {
			points[j] = plotter.XY{X: l.X[j], Y: l.Y[j]}
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, dots.Color = colors[i%len(colors)], colors[i%len(colors)]
		line.Width = vg.Points(2)
		canvas.Add(line, dots)
		canvas.Legend.Add(l.Name, line, dots)
	}
	canvas.Legend.Top, canvas.Legend.Left, canvas.Legend.Padding = true, true, vg.Points(3)
	canvas.X.Scale, canvas.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	canvas.X.Label.Text, canvas.Y.Label.Text, canvas.Y.Min = p.XTitle, p.Unit, 0
	canvas.Y.Max = 1.25 * most
	return canvas.Save(8*vg.Inch, 4*vg.Inch, file)
}
