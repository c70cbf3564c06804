use vk_supervisor::task::Kind;

use super::*;

/// A fleet with nodes of these names.
fn fleet(names: &[&str]) -> Fleet {
    let fleet = Fleet::default();
    for name in names {
        let (_, progress) = watch::channel(Progress::default());
        let member = Member { supervisor: Supervisor::new(), progress };
        fleet.nodes.lock().insert((*name).to_owned(), member);
    }
    fleet
}

fn remembered(fleet: &Fleet) -> Vec<String> {
    fleet.removed.lock().keys().cloned().collect()
}

#[tokio::test]
async fn removed_nodes_are_forgotten_once_their_tasks_have_ended() {
    let fleet = fleet(&["a", "b", "busy", "c"]);
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let busy = fleet.nodes.lock()["busy"].supervisor.clone();
    busy.spawn("call", Kind::Work, async { drop(ended.await) });
    for name in ["a", "busy", "b"] {
        fleet.remove(name);
    }
    // The last one is looked at with the next removal.
    assert_eq!(remembered(&fleet), ["b", "busy"]);
    drop(end);
    assert!(busy.shut_down(Duration::from_secs(10)).await);
    fleet.remove("c");
    assert_eq!(remembered(&fleet), ["c"]);
}
