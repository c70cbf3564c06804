//! Tests of the configuration.

use serde_json::json;
use vk_container_group::plan::policy::Choice;
use vk_provider::error::Kind;

use super::*;

const REQUIRED: &str = "region: cn-hangzhou\nvSwitches: [vsw-a, vsw-b]\nsecurityGroup: sg-1\n";

fn file(name: &str, text: &str) -> Config {
    Config::File { path: name.into(), text: text.to_owned() }
}

fn read(text: &str) -> Settings {
    Settings::read(&file("eci.yaml", text)).unwrap()
}

fn refused(text: &str) -> String {
    let error = Settings::read(&file("eci.yaml", text)).unwrap_err();
    assert_eq!(*error.kind(), Kind::Invalid, "{error}");
    assert!(error.message().contains("eci.yaml"), "{error}");
    error.message().to_owned()
}

#[test]
fn three_keys_are_enough() {
    let settings = read(REQUIRED);
    assert_eq!(settings.endpoint.to_string(), "https://eci.cn-hangzhou.aliyuncs.com");
    assert_eq!(settings.v_switches, ["vsw-a", "vsw-b"]);
    assert_eq!(settings.rate, DEFAULT_RATE);
    assert_eq!(settings.prices, Prices::Off);
    assert_eq!(settings.capacity["memory"].to_string(), "4Ti");
    assert!(!settings.is_random && settings.cluster_name.is_none());
    assert_eq!(settings.file_updates, FileUpdates::Keep);
}

#[test]
fn every_key_is_read() {
    let settings = read(
        "region: cn-hangzhou\nvSwitches: [vsw-a]\nspread: random\nsecurityGroup: sg-1\nclusterName: shop\nresourceGroup: rg-1\n\
         credentials: static\naccessKey: id\nsecretKey: hunter2\nclusterDNS: [10.96.0.10]\n\
         capacity: {cpu: \"10\", memory: 4Gi, pods: \"5\"}\ntags: {team: payments}\n\
         budget: {requestsPerSecond: 5}\nprices: {cpuHour: 0.049, memoryGiBHour: 0.0061, currency: USD}\n\
         fields: {startupProbe: refuse}\nfileUpdates: replace\nendpoint: https://eci-vpc.cn-hangzhou.aliyuncs.com\n",
    );
    assert!(settings.is_random);
    assert_eq!(settings.cluster_name.as_deref(), Some("shop"));
    assert_eq!(settings.resource_group.as_deref(), Some("rg-1"));
    assert_eq!(settings.credentials.mode, CredentialMode::Static);
    assert_eq!(settings.credentials.access_key.as_ref().unwrap().access_key_id, "id");
    assert_eq!(settings.cluster_dns, ["10.96.0.10".parse::<IpAddr>().unwrap()]);
    assert_eq!(settings.capacity["pods"], Quantity::units(5));
    assert_eq!(settings.tags, [("team".to_owned(), "payments".to_owned())]);
    assert_eq!(settings.rate, Rate { per_second: 5.0, burst: 10.0 });
    assert!(matches!(&settings.prices, Prices::List(list) if list.currency == "USD"));
    assert_eq!(settings.fields.0["startupProbe"], Choice::Refuse);
    assert_eq!(settings.file_updates, FileUpdates::Replace);
    assert_eq!(settings.endpoint.host(), "eci-vpc.cn-hangzhou.aliyuncs.com");
    assert!(!format!("{settings:?}").contains("hunter2"));
}

#[test]
fn prices_can_come_from_the_service_or_be_off() {
    assert_eq!(read(&format!("{REQUIRED}prices: cloud\n")).prices, Prices::Cloud);
    assert_eq!(read(&format!("{REQUIRED}prices: off\n")).prices, Prices::Off);
    assert!(Settings::read(&file("eci.yaml", &format!("{REQUIRED}prices: cheap\n"))).is_err());
    let list = "prices: {cpuHour: 1, memoryGibHour: 1, currency: USD}\n";
    assert!(refused(&format!("{REQUIRED}{list}")).contains("did you mean `memoryGiBHour`?"));
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_one() {
    assert!(refused(&format!("{REQUIRED}clustrName: x\n")).contains("did you mean `clusterName`?"));
    assert!(
        refused(&format!("{REQUIRED}fields: {{startupProbes: warn}}\n"))
            .contains("did you mean startupProbe?")
    );
    assert!(refused(&format!("{REQUIRED}budget: {{requestPerSecond: 1}}\n")).contains("requestsPerSecond"));
}

#[test]
fn missing_keys_are_all_named() {
    assert!(refused("region: cn-hangzhou\n").contains("vSwitches, securityGroup must be set"));
    assert!(Settings::read(&Config::Default).unwrap_err().message().contains("vSwitches"));
}

#[test]
fn wrong_values_are_refused() {
    for (text, part) in [
        ("endpoint: http://eci.example.com\n", "TLS"),
        ("capacity: {cpuu: \"1\"}\n", "cpuu"),
        ("budget: {requestsPerSecond: 0}\n", "requestsPerSecond"),
        ("budget: {requestsPerSecond: 1, burst: 0.5}\n", "burst"),
        ("tags: {\"aliyun-x\": a}\n", "aliyun"),
        ("tags: {x: \"http://a\"}\n", "http://"),
        ("accessKey: id\n", "secretKey"),
        ("prices: {cpuHour: -1, memoryGiBHour: 0, currency: USD}\n", "prices"),
    ] {
        let message = refused(&format!("{REQUIRED}{text}"));
        assert!(message.contains(part), "{text}: {message}");
    }
    assert!(refused("region: CN\nvSwitches: [a]\nsecurityGroup: b\n").contains("region"));
    assert!(refused("region: a\nvSwitches: [a, a]\nsecurityGroup: b\n").contains("twice"));
}

#[test]
fn the_toml_file_of_the_go_provider_is_read_and_the_environment_wins() {
    let text = "# ECI\nRegion = \"cn-shanghai\"\nOperatingSystem = \"Linux\" # as always\nCPU = \"20\"\nMemory = \"100Gi\"\nPods = 20\n\
                VSwitch = 'vsw-1'\nSecureGroup = \"sg-1\"\nClusterName = \"default\"\n";
    let settings = Settings::read(&file("eci.toml", text)).unwrap();
    assert_eq!((settings.region.as_str(), settings.v_switches.len()), ("cn-shanghai", 1));
    assert_eq!(settings.cluster_name.as_deref(), Some("default"));
    assert_eq!(
        (settings.capacity["pods"], settings.capacity["cpu"]),
        (Quantity::units(20), Quantity::units(20))
    );
    let keys = json!({"region": "cn-beijing", "vSwitches": ["vsw-2", "vsw-3"], "capacity": {"cpu": "7"}});
    let overridden = file("eci.toml", text).with(keys.as_object().unwrap().clone());
    let settings = Settings::read(&overridden).unwrap();
    assert_eq!((settings.region.as_str(), settings.v_switches.len()), ("cn-beijing", 2));
    assert_eq!(
        (settings.capacity["cpu"], settings.capacity["pods"]),
        (Quantity::units(7), Quantity::units(20))
    );
    let error = Settings::read(&file("eci.toml", "Regon = \"a\"\n")).unwrap_err();
    assert!(error.message().contains("did you mean `Region`?"), "{error}");
}

#[test]
fn every_variable_sets_a_key() {
    let mut keys = serde_json::Map::new();
    for alias in VARIABLES {
        alias.set(&mut keys, alias.parse("1").unwrap().unwrap());
    }
    let settings = Settings::read(&Config::Default.with(keys)).unwrap();
    assert_eq!((settings.region.as_str(), settings.security_group.as_str()), ("1", "1"));
    assert_eq!(settings.cluster_name.as_deref(), Some("1"));
    assert_eq!(settings.capacity["cpu"], Quantity::units(1));
    assert!(settings.credentials.access_key.is_some());
}

#[test]
fn the_reference_has_every_key_and_every_variable() {
    let page = include_str!("../../../../docs/reference/configuration.md");
    let (_, section) = page.split_once("## The provider `eci`").expect("a section about eci");
    let section = section.split("\n## ").next().unwrap_or_default();
    let keys = [
        "region",
        "vSwitches",
        "spread",
        "securityGroup",
        "clusterName",
        "resourceGroup",
        "credentials",
        "accessKey",
        "secretKey",
        "profile",
        "roleName",
        "clusterDNS",
        "capacity",
        "tags",
        "budget",
        "prices",
        "fields",
        "fileUpdates",
        "endpoint",
    ];
    for name in keys.into_iter().chain(VARIABLES.iter().map(|alias| alias.name)) {
        assert!(section.contains(&format!("`{name}`")), "{name} is not in docs/reference/configuration.md");
    }
}
