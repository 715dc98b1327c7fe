// Prints what GitOps tools make of each object on standard input: kstatus' verdict (Flux, kubectl plugins), and that of
// a health check of Argo CD's, which runs such scripts by this interpreter.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	script, err := os.ReadFile(os.Args[1])
	check(err)
	decoder := json.NewDecoder(os.Stdin)
	for {
		var object map[string]interface{}
		if err := decoder.Decode(&object); err == io.EOF {
			return
		} else {
			check(err)
		}
		// The Lua value first: kstatus may change what it is given.
		health := healthOf(object, string(script))
		found, err := status.Compute(&unstructured.Unstructured{Object: withIntegers(object).(map[string]interface{})})
		check(err)
		fmt.Println(found.Status, health)
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "gitops:", err)
		os.Exit(1)
	}
}

func healthOf(object interface{}, script string) string {
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", toLua(state, object))
	check(state.DoString(script))
	return state.Get(-1).(*lua.LTable).RawGetString("status").String()
}

func toLua(state *lua.LState, value interface{}) lua.LValue {
	switch found := value.(type) {
	case map[string]interface{}:
		table := state.NewTable()
		for key, item := range found {
			table.RawSetString(key, toLua(state, item))
		}
		return table
	case []interface{}:
		table := state.NewTable()
		for _, item := range found {
			table.Append(toLua(state, item))
		}
		return table
	case string:
		return lua.LString(found)
	case float64:
		return lua.LNumber(found)
	case bool:
		return lua.LBool(found)
	}
	return lua.LNil
}

// withIntegers makes whole numbers what the API machinery's own decoder makes of them.
func withIntegers(value interface{}) interface{} {
	switch found := value.(type) {
	case map[string]interface{}:
		for key, item := range found {
			found[key] = withIntegers(item)
		}
	case []interface{}:
		for number, item := range found {
			found[number] = withIntegers(item)
		}
	case float64:
		if found == float64(int64(found)) {
			return int64(found)
		}
	}
	return value
}
