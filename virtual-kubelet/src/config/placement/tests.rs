use serde_json::{Value, json};

use super::*;

fn resolved(section: Value) -> (Option<Placement>, Vec<String>) {
    let mut problems = Vec::new();
    let placement = resolve(&serde_json::from_value(section).unwrap(), &mut problems).parts;
    (placement, problems.iter().map(ToString::to_string).collect())
}

#[test]
fn placement_is_off_unless_a_part_is_switched_on() {
    for section in [
        json!({}),
        json!({"gates": "off", "order": ["a"]}),
        json!({"namespace": "vk", "upperKeys": ["type"], "tls": {"serverNames": ["a.example.com"]}}),
    ] {
        assert_eq!(resolved(section), (None, Vec::new()));
    }
}

#[test]
fn a_complete_section_survives_the_dump() {
    let section = json!({
        "namespace": "vk", "gates": "estimate", "local": true, "order": ["local", "vk-a"], "prefer": "pack",
        "descheduler": {"after": "1m", "most": 5, "avoid": "10m", "dryRun": true},
        "extender": {"listen": ":8443"}, "webhook": {"listen": "127.0.0.1:8444"},
        "upperKeys": ["type", "example.com/site"], "tolerateLost": true,
        "tls": {"certFile": "/c", "keyFile": "/k", "clientCaFile": "/ca", "serverNames": ["a.example.com", "10.0.0.1"]},
    });
    let (placement, problems) = resolved(section.clone());
    assert_eq!(problems, [""; 0]);
    assert_eq!(serde_json::to_value(placement.unwrap().to_settings()).unwrap(), section);
}

#[test]
fn pods_on_trial_have_half_a_minute_unless_configured_otherwise() {
    let patience = |section| resolved(section).0.unwrap().gates.unwrap().trial;
    assert_eq!(patience(json!({"gates": "trial"})), Some(Duration::from_secs(30)));
    assert_eq!(patience(json!({"gates": "trial", "trialPatience": "2m"})), Some(Duration::from_mins(2)));
    assert_eq!(patience(json!({"gates": "estimate", "trialPatience": "2m"})), None);
    let section = json!({"namespace": "vk", "gates": "trial", "local": true, "prefer": "spread", "trialPatience": "1m"});
    assert_eq!(serde_json::to_value(resolved(section.clone()).0.unwrap().to_settings()).unwrap(), section);
}

#[test]
fn bad_values_are_named() {
    for (section, expected) in [
        (json!({"namespace": "A b"}), "placement.namespace"),
        (json!({"order": ["a"], "weights": {"a": 1}}), "placement.weights"),
        (json!({"order": ["a", "b", "a"]}), "names a twice"),
        (json!({"weights": {"a": 0}}), "placement.weights.a"),
        (json!({"weights": {"local": 2}, "local": false}), "placement.local"),
        (json!({"trialPatience": "11m"}), "placement.trialPatience"),
        (json!({"trialPatience": "0s"}), "placement.trialPatience"),
        (json!({"descheduler": {"most": 0}}), "placement.descheduler.most"),
        (json!({"descheduler": {"after": "0s"}}), "placement.descheduler.after"),
        (json!({"upperKeys": ["type", "a b\""]}), "placement.upperKeys"),
        (json!({"extender": {}, "webhook": {"listen": "127.0.0.1:8443"}}), "choose another port"),
        (json!({"extender": {}, "tls": {"certFile": "/c"}}), "placement.tls.keyFile"),
        (json!({"webhook": {}, "tls": {"certFile": "", "keyFile": "/k"}}), "placement.tls.certFile"),
        (json!({"extender": {}, "tls": {"certFile": "/c", "keyFile": "/k"}}), "placement.tls.clientCaFile"),
        (json!({"tls": {"serverNames": ["https://a"]}}), "placement.tls.serverNames"),
    ] {
        let (_, problems) = resolved(section.clone());
        assert!(problems.len() == 1 && problems[0].contains(expected), "{section}: {problems:?}");
    }
    for wrong in [
        json!({"gates": "maybe"}),
        json!({"gate": "off"}),
        json!({"descheduler": {"after": 5}}),
        json!({"extender": {"listen": "off"}}),
        json!({"webhook": {"port": 1}}),
    ] {
        assert!(serde_json::from_value::<PlacementSettings>(wrong.clone()).is_err(), "{wrong}");
    }
}

#[test]
fn extender_and_webhook_alone_switch_placement_on() {
    let serving = |section| resolved(section).0.unwrap().serving.unwrap();
    let extender = serving(json!({"extender": {}, "order": ["vk-a"]}));
    assert_eq!((extender.extender.unwrap().to_string(), &extender.webhook), (":8443".to_owned(), &None));
    let webhook = serving(json!({"webhook": {}, "gates": "trial"}));
    let ServedWebhook { listen, conversion } = webhook.webhook.unwrap();
    assert_eq!((listen.to_string().as_str(), webhook.extender), (":8444", None));
    assert!(conversion.gate == Some(true) && conversion.is_upper("clusterID"));
}

#[test]
fn what_decides_in_the_leader_is_apart_from_what_all_processes_serve() {
    let summaries = |section| {
        let placement = resolved(section).0.unwrap();
        (placement.leader_summary(), placement.serving_summary())
    };
    assert_eq!(
        summaries(json!({"gates": "estimate", "local": false})),
        (
            Some(
                r#"{"namespace":"kube-system","gates":"estimate","local":false,"prefer":"spread"}"#
                    .to_owned()
            ),
            None
        )
    );
    // Where they listen may differ.
    let expected = r#"{"namespace":"kube-system","order":["vk-a"],"prefer":"spread","extender":{}}"#;
    for listen in [":8443", "10.0.0.1:443"] {
        let section = json!({"extender": {"listen": listen}, "order": ["vk-a"]});
        assert_eq!(summaries(section), (None, Some(expected.to_owned())));
    }
    let section =
        json!({"descheduler": {}, "webhook": {}, "upperKeys": ["type"], "tls": {"serverNames": ["a"]}});
    let (leader, serving) = summaries(section);
    assert!(leader.is_some_and(|text| text.contains("descheduler") && !text.contains("webhook")));
    let expected = r#"{"namespace":"kube-system","upperKeys":["type"],"tolerateLost":false,"webhook":{},"tls":{"serverNames":["a"]}}"#;
    assert_eq!(serving.unwrap(), expected);
}

#[test]
fn a_command_for_one_part_switches_the_others_off() {
    let section = json!({"gates": "trial", "descheduler": {}, "extender": {}, "webhook": {}});
    let only = |part| {
        let mut placement = resolved(section.clone()).0.unwrap();
        placement.keep_only(part);
        let serves = |serving: &Serving| (serving.extender.is_some(), serving.webhook.is_some());
        (placement.gates.is_some(), placement.descheduler.is_some(), placement.serving.as_ref().map(serves))
    };
    assert_eq!(only(PlacementPart::Descheduler), (false, true, None));
    assert_eq!(only(PlacementPart::Extender), (false, false, Some((true, false))));
    assert_eq!(only(PlacementPart::Webhook), (false, false, Some((false, true))));
}
