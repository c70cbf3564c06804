//! The engine passes its suite on clouds of each kind: with tokens and a feed, with names, and with neither.

mod tokens_and_feed {
    vk_container_group::conformance!(vk_container_group::fake::FakeCloud::new);
}

mod names {
    use vk_container_group::{
        backend::{Caps, Idempotency, Naming},
        fake::FakeCloud,
    };

    /// The name is the id, there is no feed, and details are read 50 at a time.
    fn caps() -> Caps {
        let naming = Naming::Chosen;
        Caps {
            naming,
            idempotency: Idempotency::Name,
            feed: false,
            detail_batch: 50,
            ..FakeCloud::all_caps()
        }
    }

    vk_container_group::conformance!(|clock| FakeCloud::with_caps(clock, caps()));
}
