use serde_json::json;

use super::*;

#[derive(Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Size {
    cpu: String,
    memory: Option<String>,
}

fn file(text: &str) -> Config {
    Config::File { path: "mock.yaml".into(), text: text.into() }
}

#[test]
fn yaml_and_json_are_parsed_alike() {
    let expected = Some(Size { cpu: "2".into(), memory: Some("1Gi".into()) });
    assert_eq!(file("cpu: \"2\"\nmemory: 1Gi\n").parse::<Size>().unwrap(), expected);
    assert_eq!(file(r#"{"cpu": "2", "memory": "1Gi"}"#).parse::<Size>().unwrap(), expected);
    let inline = Config::Inline(serde_json::json!({"cpu": "2", "memory": "1Gi"}));
    assert_eq!(inline.parse::<Size>().unwrap(), expected);
    assert_eq!(Config::Default.parse::<Size>().unwrap(), None);
}

#[test]
fn an_unknown_key_is_refused_with_the_file_and_the_nearest_key() {
    for config in
        [file("cpu: \"2\"\nmemmory: 1Gi\n"), Config::Inline(serde_json::json!({"cpu": "2", "memmory": "1"}))]
    {
        let error = config.parse::<Size>().unwrap_err();
        assert_eq!(*error.kind(), crate::error::Kind::Invalid);
        assert!(error.message().contains("memmory"), "{error}");
        assert!(error.message().contains("did you mean `memory`?"), "{error}");
    }
    assert!(file("cpuu: 1").parse::<Size>().unwrap_err().message().contains("mock.yaml"));
}

#[test]
fn overriding_keys_win_and_errors_keep_their_position() {
    let keys = |value: serde_json::Value| value.as_object().unwrap().clone();
    let flags = || keys(serde_json::json!({"cpu": "4"}));
    let expected = |memory: Option<&str>| Some(Size { cpu: "4".into(), memory: memory.map(Into::into) });
    assert_eq!(Config::Default.with(flags()).parse::<Size>().unwrap(), expected(None));
    assert_eq!(Config::Default.with(Map::new()), Config::Default);
    let inline = Config::Inline(serde_json::json!({"cpu": "2", "memory": "1Gi"}));
    assert_eq!(inline.with(flags()).parse::<Size>().unwrap(), expected(Some("1Gi")));
    for text in ["cpu: \"2\"\nmemory: 1Gi\n", "memory: 1Gi\n"] {
        let config = file(text).with(keys(serde_json::json!({"cpu": "3"}))).with(flags());
        assert_eq!(config.parse::<Size>().unwrap(), expected(Some("1Gi")), "{text}");
        assert_eq!(config.path(), Some(Path::new("mock.yaml")));
    }
    assert_eq!(file("\n").with(flags()).parse::<Size>().unwrap(), expected(None), "an empty file");
    for (text, words) in [
        ("cpu: \"2\"\nmemmory: 1Gi\n", ["mock.yaml", "line 2", "did you mean `memory`?"]),
        ("just text", ["mock.yaml", "line 1", "expected"]),
        ("cpu: [", ["mock.yaml", "line 1", ""]),
    ] {
        let error = file(text).with(flags()).parse::<Size>().unwrap_err();
        assert!(words.iter().all(|word| error.message().contains(word)), "{words:?} in {error}");
    }
    let wrong = file("memory: 1Gi\n").with(keys(serde_json::json!({"cpu": 4})));
    let error = wrong.parse::<Size>().unwrap_err();
    assert!(error.message().contains("mock.yaml"), "{error}");
    let wrong = file("cpu: \"2\"\n").with(keys(serde_json::json!({"cpu": 4})));
    let error = wrong.parse::<Size>().unwrap_err();
    assert!(error.message().contains("mock.yaml with cpu: "), "{error}");
}

#[test]
fn overriding_keys_are_merged_into_sections() {
    let capacity = |cpu: &str| Map::from_iter([("capacity".to_owned(), json!({ "cpu": cpu }))]);
    let written = "capacity: {cpu: \"1\", memory: 1Gi}\nzones: [a]\n";
    let expected = json!({"capacity": {"cpu": "3", "memory": "1Gi"}, "zones": ["a"]});
    let merged = file(written).with(capacity("2")).with(capacity("3"));
    assert_eq!(merged.parse::<Value>().unwrap(), Some(expected));
    let zones = Map::from_iter([("zones".to_owned(), json!(["b"]))]);
    let inline = Config::Inline(json!({"zones": ["a"], "capacity": null})).with(zones).with(capacity("2"));
    assert_eq!(inline.parse::<Value>().unwrap(), Some(json!({"zones": ["b"], "capacity": {"cpu": "2"}})));
}

#[test]
fn the_toml_file_of_a_go_provider_sets_the_keys_of_its_aliases() {
    const KEYS: [ConfigAlias; 4] = [
        ConfigAlias::text("Region", "region"),
        ConfigAlias::text("CPU", "capacity.cpu"),
        ConfigAlias::list("VSwitch", "vSwitches"),
        ConfigAlias::ignored("OperatingSystem"),
    ];
    let toml = |text: &str| Config::File { path: "eci.TOML".into(), text: text.into() };
    let read = |config: &Config| config.parse_with_toml::<Value>(&KEYS);
    let written = "Region = \"r\"\nCPU = 20\nVSwitch = \"a\"\nOperatingSystem = \"Linux\"\n";
    let expected = json!({"region": "r", "capacity": {"cpu": "20"}, "vSwitches": ["a"]});
    assert_eq!(read(&toml(written)).unwrap(), Some(expected));
    let variable = Map::from_iter([("capacity".to_owned(), json!({"cpu": "9"}))]);
    let expected = json!({"region": "r", "capacity": {"cpu": "9"}, "vSwitches": ["a"]});
    assert_eq!(read(&toml(written).with(variable)).unwrap(), Some(expected));
    for (text, words) in [
        (
            "Region = \"r\"\nVSwich = \"a\"\n",
            "eci.TOML: line 2: unknown key `VSwich` (did you mean `VSwitch`?)",
        ),
        ("Region = true\n", "eci.TOML: line 1: Region: must be text in quotes"),
        ("Region = r\n", "eci.TOML: line 1: Region: is not an integer"),
    ] {
        let error = read(&toml(text)).unwrap_err();
        assert!(error.message().contains(words), "{error}");
    }
    let yaml = Config::File { path: "eci.yaml".into(), text: "region: r".into() };
    assert_eq!(read(&yaml).unwrap(), Some(json!({"region": "r"})), "YAML has the usual keys");
    assert_eq!(toml("cpu = \"2\"").parse::<Size>().unwrap(), Some(Size { cpu: "2".into(), memory: None }));
    let error = toml("cpuu = \"2\"").parse::<Size>().unwrap_err();
    assert!(
        error.message().contains("eci.TOML") && error.message().contains("did you mean `cpu`?"),
        "{error}"
    );
}

#[test]
fn the_values_of_a_configuration_are_not_in_its_debug_output() {
    let key = || Map::from_iter([("accessKey".to_owned(), json!("hidden"))]);
    for config in [file("a: hidden"), file("a: hidden").with(key()), Config::Default.with(key())] {
        let shown = format!("{config:?}");
        assert!(!shown.contains("hidden"), "{shown}");
    }
}

#[test]
fn a_key_unlike_all_others_gets_no_suggestion() {
    assert_eq!(nearest("zzz", ["cpu", "memory"]), None);
    assert_eq!(nearest("node-name", ["nodeName", "memory"]), Some("nodeName"));
}
