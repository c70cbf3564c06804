use vk_provider::{PodRef, inventory::Size};

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    at("2026-01-10T00:00:00Z")
}

fn group(id: &str, pod: Option<&str>, size: &str, per_hour: f64, begin: &str) -> Group {
    let (cpu, memory) = size.split_once('-').unwrap();
    Group {
        node: Some("eci-hangzhou".into()),
        pod: pod.map(|name| PodRef::new("shop", name, format!("uid-{name}"))),
        size: Some(Size { cpu: cpu.parse().unwrap(), memory: memory.parse().unwrap(), instance_type: None }),
        price: Some(Price { per_hour, currency: "USD".into() }),
        begin: Some(at(begin)),
        ..Group::new(id, "Running")
    }
}

#[test]
fn groups_are_shown_with_their_price_and_orphans() {
    let live = group("eci-2ze4k", Some("web-7d-x2k"), "2-4Gi", 0.1224, "2026-01-09T20:48:00Z");
    let lost = group("eci-2ze9q", Some("web-gone"), "4-8Gi", 0.2448, "2026-01-01T00:00:00Z");
    let rows = [
        Row { provider: "eci", group: &live, fate: PodFate::Exists },
        Row { provider: "eci", group: &lost, fate: PodFate::Missing },
    ];
    assert_eq!(
        text(&rows, now()),
        "NODE          POD              GROUP      STATE    SIZE   PRICE/H     AGE    COST\n\
         eci-hangzhou  shop/web-7d-x2k  eci-2ze4k  Running  2-4Gi  0.1224 USD  3h12m  0.39 USD\n\
         eci-hangzhou  (none)           eci-2ze9q  Running  4-8Gi  0.2448 USD  9d     52.88 USD  orphaned: pod does not exist\n\
         \n\
         total: 2 groups, 0.3672 USD/h, 53.27 USD\n\
         orphaned: 1 group, 0.2448 USD/h, 52.88 USD\n"
    );
}

#[test]
fn what_is_not_known_is_not_invented() {
    let bare = Group::new("g-1", "Pending");
    let rows = [Row { provider: "eci", group: &bare, fate: PodFate::Unknown("no kubeconfig".into()) }];
    let shown = text(&rows, now());
    assert!(shown.contains("-     -    g-1    Pending  -     -        -    -\n"), "{shown}");
    assert!(shown.ends_with("\ntotal: 1 group, 1 without a price\n"), "{shown}");
    let json = json(&rows, now());
    let only = &json["groups"][0];
    for key in ["pod", "podExists", "price", "cost", "size", "begin"] {
        assert!(only[key].is_null(), "{key} in {json}");
    }
    assert_eq!((&only["orphaned"], &json["totals"]), (&serde_json::json!(false), &serde_json::json!([])));
}

#[test]
fn an_ended_group_costs_nothing_more_and_is_no_orphan() {
    let mut ended = group("g-1", Some("job"), "2-4Gi", 1.0, "2026-01-09T20:00:00Z");
    ended.end = Some(at("2026-01-09T22:00:00Z"));
    ended.remark = Some("of the Go provider".into());
    let rows = [Row { provider: "eci", group: &ended, fate: PodFate::Missing }];
    let shown = text(&rows, now());
    assert!(shown.contains("2.00 USD  ended; pod does not exist; of the Go provider\n"), "{shown}");
    assert!(shown.ends_with("\ntotal: 1 group, 0.0000 USD/h, 2.00 USD\n"), "{shown}");
    assert!(!rows[0].is_orphaned());
}

#[test]
fn each_currency_has_its_own_total() {
    let dollars = group("g-1", Some("a"), "1-2Gi", 0.5, "2026-01-09T23:00:00Z");
    let mut yuan = group("g-2", Some("b"), "1-2Gi", 2.0, "2026-01-09T22:00:00Z");
    yuan.price = Some(Price { per_hour: 2.0, currency: "CNY".into() });
    let row = |group| Row { provider: "eci", group, fate: PodFate::Exists };
    let rows = [row(&dollars), row(&yuan)];
    assert!(
        text(&rows, now()).ends_with("\ntotal: 2 groups, 2.0000 CNY/h, 4.00 CNY, 0.5000 USD/h, 0.50 USD\n")
    );
    let json = json(&rows, now());
    assert_eq!(
        json["totals"][0],
        serde_json::json!({"currency": "CNY", "groups": 1, "perHour": 2.0, "cost": 4.0})
    );
    assert_eq!(json["groups"][1]["pod"]["uid"], "uid-b");
    assert_eq!(json["groups"][1]["podExists"], true);
}

#[test]
fn an_empty_list_is_a_head_without_totals() {
    assert_eq!(text(&[], now()), "NODE  POD  GROUP  STATE  SIZE  PRICE/H  AGE  COST\n");
}

#[test]
fn ages_are_written_as_by_kubectl() {
    for (seconds, text) in [
        (-5, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (660, "11m"),
        (3 * 3_600 + 12 * 60, "3h12m"),
        (8 * 3_600, "8h"),
        (47 * 3_600, "47h"),
        (50 * 3_600, "2d2h"),
        (9 * 86_400, "9d"),
        (800 * 86_400, "2y70d"),
        (9 * 365 * 86_400, "9y"),
    ] {
        assert_eq!(age(seconds), text, "{seconds}");
    }
}
