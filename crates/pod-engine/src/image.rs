//! Images: policy, credentials, one pull for many, back-off.
