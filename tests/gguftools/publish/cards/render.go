// Render templates as Ollama does: by text/template, with messages. Reads and prints JSON.
package main

import (
	"encoding/json"
	"os"
	"strings"
	"text/template"
)

type message struct {
	Role    string
	Content string
}

type task struct {
	Template      string
	Conversations [][]message
}

func main() {
	var tasks []task
	if err := json.NewDecoder(os.Stdin).Decode(&tasks); err != nil {
		panic(err)
	}
	rendered := [][]string{}
	for _, each := range tasks {
		parsed := template.Must(template.New("").Option("missingkey=zero").Parse(each.Template))
		texts := []string{}
		for _, messages := range each.Conversations {
			var text strings.Builder
			if err := parsed.Execute(&text, map[string]any{"Messages": messages}); err != nil {
				panic(err)
			}
			texts = append(texts, text.String())
		}
		rendered = append(rendered, texts)
	}
	if err := json.NewEncoder(os.Stdout).Encode(rendered); err != nil {
		panic(err)
	}
}
