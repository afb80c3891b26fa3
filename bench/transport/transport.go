package transport

import "kong-quota/bench/report"

func Run(int, func(string)) ([]report.Section, error) { return nil, nil }
