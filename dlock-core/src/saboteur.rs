//! Planted bugs: proof that the conformance kit bites.
//!
//! Each is one `if` in the reference backend or in the engine, asked as `self.bug.is(Bug::…)`. They exist only in a build
//! with `--cfg dlock_saboteur`; in any other, `is` is a constant `false` and nothing can be planted.

/// At least one planted bug per rule of the kit; the number of the rule stands beside it.
///
/// The rebuilt ones are bugs that were in the field, with their own mechanism and trigger: the exhibits of the museum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bug {
    /// `owner_is_pool_connection`, rule 1.07: a rebuilt one.
    OwnerIsPoolConnection,
    /// `renewal_not_rescheduled`, rule 5.11: a rebuilt one.
    RenewalNotRescheduled,
    /// `readers_not_renewed`, rule 5.09: a rebuilt one.
    ReadersNotRenewed,
    /// `downgrade_ends_renewal`, rule 5.09: a rebuilt one.
    DowngradeEndsRenewal,
    /// `stale_renewal_entry`, rule 5.09: a rebuilt one.
    StaleRenewalEntry,
    /// `held_after_loss`, rule 5.09: a rebuilt one.
    HeldAfterLoss,
    /// `token_random`, rule 7.02: a rebuilt one.
    TokenRandom,
    /// `token_kept_on_retake`, rule 7.04: a rebuilt one.
    TokenKeptOnRetake,
    /// `queue_timeouts_drift`, rule 8.06: a rebuilt one.
    QueueTimeoutsDrift,
    /// `unlock_retry_frees_relock`, rule 4.04: a rebuilt one.
    UnlockRetryFreesRelock,
    /// `last_lease_for_all`, rule 11.04: a rebuilt one.
    LastLeaseForAll,
    /// `renews_every_reader`, rule 11.04: a rebuilt one.
    RenewsEveryReader,
    /// `read_unlock_ignores_owner`, rule 11.05: a rebuilt one.
    ReadUnlockIgnoresOwner,
    /// `waits_on_deleted_key`, rule 11.09: a rebuilt one.
    WaitsOnDeletedKey,
    /// `second_lock_drops_first`, rule 13.02: a rebuilt one.
    SecondLockDropsFirst,
    /// `cleanup_tried_once`, rule 15.08: a rebuilt one.
    CleanupTriedOnce,
    /// `grant_without_check`, rule 1.01.
    GrantWithoutCheck,
    /// `process_local_lock`, rule 1.02.
    ProcessLocalLock,
    /// `check_then_set`, rule 1.03.
    CheckThenSet,
    /// `early_unlock`, rule 1.04.
    EarlyUnlock,
    /// `owner_from_pid_time`, rule 1.06.
    OwnerFromPidTime,
    /// `owner_is_client`, rule 1.07.
    OwnerIsClient,
    /// `try_blocks`, rule 2.01.
    TryBlocks,
    /// `try_spurious_fail`, rule 2.02.
    TrySpuriousFail,
    /// `never_wakes`, rule 2.03.
    NeverWakes,
    /// `deadline_half`, rule 2.04.
    DeadlineHalf,
    /// `orphan_waiter`, rule 2.05.
    OrphanWaiter,
    /// `zero_means_forever`, rule 2.06.
    ZeroMeansForever,
    /// `timeout_leaks_grant`, rule 2.07.
    TimeoutLeaksGrant,
    /// `zero_ttl_forever`, rule 2.08.
    ZeroTtlForever,
    /// `entry_leak`, rule 2.09.
    EntryLeak,
    /// `ttl_u32_wrap`, rule 2.10.
    TtlU32Wrap,
    /// `hidden_default_timeout`, rule 2.11.
    HiddenDefaultTimeout,
    /// `no_expiry`, rule 3.01.
    NoExpiry,
    /// `early_expiry`, rule 3.02.
    EarlyExpiry,
    /// `cached_valid_flag`, rule 3.04.
    CachedValidFlag,
    /// `client_walltime_deadline`, rule 3.05.
    ClientWalltimeDeadline,
    /// `release_by_name`, rule 3.06.
    ReleaseByName,
    /// `ttl_sticky_first`, rule 3.07.
    TtlStickyFirst,
    /// `expiry_no_wakeup`, rule 3.08.
    ExpiryNoWakeup,
    /// `ttl_rounds_down`, rule 3.10.
    TtlRoundsDown,
    /// `tiny_ttl_immortal`, rule 3.11.
    TinyTtlImmortal,
    /// `negative_margin`, rule 3.12.
    NegativeMargin,
    /// `lazy_release`, rule 4.01.
    LazyRelease,
    /// `release_by_session`, rule 4.02.
    ReleaseBySession,
    /// `double_release_frees_next`, rule 4.03.
    DoubleReleaseFreesNext,
    /// `unlock_on_other_conn`, rule 4.07.
    UnlockOnOtherConn,
    /// `drop_needs_runtime`, rule 4.08.
    DropNeedsRuntime,
    /// `drop_keeps_renewing`, rule 4.09.
    DropKeepsRenewing,
    /// `drop_waits_ttl`, rule 4.10.
    DropWaitsTtl,
    /// `release_grants_two`, rule 4.11.
    ReleaseGrantsTwo,
    /// `forget_is_immortal`, rule 4.12.
    ForgetIsImmortal,
    /// `renew_noop`, rule 5.01.
    RenewNoop,
    /// `renew_additive`, rule 5.02.
    RenewAdditive,
    /// `renew_resurrects`, rule 5.03.
    RenewResurrects,
    /// `renew_by_name`, rule 5.04.
    RenewByName,
    /// `renew_recreates`, rule 5.05.
    RenewRecreates,
    /// `renew_release_race`, rule 5.06.
    RenewReleaseRace,
    /// `renew_bumps_token`, rule 5.08.
    RenewBumpsToken,
    /// `autorenew_stops_after_5`, rule 5.09.
    AutorenewStopsAfter5,
    /// `max_hold_ignored`, rule 5.13.
    MaxHoldIgnored,
    /// `serial_renewer_starves`, rule 5.14.
    SerialRenewerStarves,
    /// `lost_on_release`, rule 6.03.
    LostOnRelease,
    /// `lost_spurious`, rule 6.05.
    LostSpurious,
    /// `token_zero`, rule 7.01.
    TokenZero,
    /// `token_repeats`, rule 7.02.
    TokenRepeats,
    /// `token_reset_on_release`, rule 7.03.
    TokenResetOnRelease,
    /// `token_reset_on_expiry`, rule 7.04.
    TokenResetOnExpiry,
    /// `token_per_client`, rule 7.05.
    TokenPerClient,
    /// `token_before_grant`, rule 7.09.
    TokenBeforeGrant,
    /// `read_token_stale`, rule 7.11.
    ReadTokenStale,
    /// `token_bump_on_reenter`, rule 7.10.
    TokenBumpOnReenter,
    /// `resource_accepts_stale`, rule 7.12.
    ResourceAcceptsStale,
    /// `resource_check_then_write`, rule 7.13.
    ResourceCheckThenWrite,
    /// `zombie_write_wins`, rule 7.15.
    ZombieWriteWins,
    /// `fence_key_leak`, rule 7.16.
    FenceKeyLeak,
    /// `notify_before_register`, rule 8.01.
    NotifyBeforeRegister,
    /// `poll_every_5s`, rule 8.02.
    PollEvery5s,
    /// `starve_client_0`, rule 8.03.
    StarveClient0,
    /// `lifo_queue`, rule 8.04.
    LifoQueue,
    /// `barging_try`, rule 8.05.
    BargingTry,
    /// `dead_head_blocks`, rule 8.06.
    DeadHeadBlocks,
    /// `live_waiter_evicted`, rule 8.07.
    LiveWaiterEvicted,
    /// `prio_ignored`, rule 8.08.
    PrioIgnored,
    /// `prio_starves`, rule 8.09.
    PrioStarves,
    /// `waiters_capped_256`, rule 8.11.
    WaitersCapped256,
    /// `cancel_eats_wakeup`, rule 8.12.
    CancelEatsWakeup,
    /// `cancel_leaks_grant`, rule 9.01.
    CancelLeaksGrant,
    /// `cancel_waits_ttl`, rule 9.02.
    CancelWaitsTtl,
    /// `cancelled_release_renews`, rule 9.03.
    CancelledReleaseRenews,
    /// `cancelled_renew_extends`, rule 9.04.
    CancelledRenewExtends,
    /// `reply_desync`, rule 9.05.
    ReplyDesync,
    /// `watch_leak`, rule 9.06.
    WatchLeak,
    /// `close_hangs`, rule 9.07.
    CloseHangs,
    /// `shutdown_deadlock`, rule 9.08.
    ShutdownDeadlock,
    /// `thread_affine_state`, rule 9.09.
    ThreadAffineState,
    /// `stale_waker`, rule 9.10.
    StaleWaker,
    /// `hidden_tokio`, rule 9.11.
    HiddenTokio,
    /// `reent_unbounded`, rule 10.01.
    ReentUnbounded,
    /// `first_release_frees`, rule 10.02.
    FirstReleaseFrees,
    /// `reent_for_all`, rule 10.03.
    ReentForAll,
    /// `partial_loss`, rule 10.04.
    PartialLoss,
    /// `reent_by_thread`, rule 10.06.
    ReentByThread,
    /// `readers_exclusive`, rule 11.01.
    ReadersExclusive,
    /// `reader_during_write`, rule 11.02.
    ReaderDuringWrite,
    /// `writer_after_first_reader`, rule 11.03.
    WriterAfterFirstReader,
    /// `reader_expiry_frees_all`, rule 11.04.
    ReaderExpiryFreesAll,
    /// `reader_releases_other`, rule 11.05.
    ReaderReleasesOther,
    /// `writer_starved`, rule 11.06.
    WriterStarved,
    /// `reader_barges`, rule 11.07.
    ReaderBarges,
    /// `cancelled_writer_blocks`, rule 11.08.
    CancelledWriterBlocks,
    /// `rw_cross_wait`, rule 11.09.
    RwCrossWait,
    /// `downgrade_gap`, rule 11.10.
    DowngradeGap,
    /// `upgrade_deadlock`, rule 11.11.
    UpgradeDeadlock,
    /// `failed_upgrade_drops_read`, rule 11.12.
    FailedUpgradeDropsRead,
    /// `self_deadlock_forever`, rule 11.13.
    SelfDeadlockForever,
    /// `watch_gap`, rule 12.01.
    WatchGap,
    /// `watch_reorder`, rule 12.02.
    WatchReorder,
    /// `watch_misses_last`, rule 12.03.
    WatchMissesLast,
    /// `watch_no_expire_event`, rule 12.04.
    WatchNoExpireEvent,
    /// `watch_unbounded`, rule 12.07.
    WatchUnbounded,
    /// `watch_enqueues`, rule 12.08.
    WatchEnqueues,
    /// `watch_no_handoff`, rule 12.09.
    WatchNoHandoff,
    /// `name_max_255`, rule 13.01.
    NameMax255,
    /// `name_truncated`, rule 13.02.
    NameTruncated,
    /// `name_hash32`, rule 13.03.
    NameHash32,
    /// `name_case_fold`, rule 13.04.
    NameCaseFold,
    /// `name_trailing_space`, rule 13.05.
    NameTrailingSpace,
    /// `name_nfc`, rule 13.06.
    NameNfc,
    /// `name_as_path`, rule 13.07.
    NameAsPath,
    /// `name_as_glob`, rule 13.08.
    NameAsGlob,
    /// `name_interpolated`, rule 13.09.
    NameInterpolated,
    /// `oversize_hashed`, rule 13.10.
    OversizeHashed,
    /// `namespace_concat`, rule 13.11.
    NamespaceConcat,
    /// `held_cap_1024`, rule 13.12.
    HeldCap1024,
    /// `name_garbage`, rule 13.13.
    NameGarbage,
    /// `label_truncated`, rule 13.14.
    LabelTruncated,
    /// `limit_off_by_10x`, rule 13.15.
    LimitOffBy10x,
    /// `head_of_line`, rule 14.01.
    HeadOfLine,
    /// `client_not_concurrent`, rule 14.02.
    ClientNotConcurrent,
    /// `release_behind_waiter`, rule 14.03.
    ReleaseBehindWaiter,
    /// `clone_shares_owner`, rule 14.04.
    CloneSharesOwner,
    /// `cross_name_release`, rule 14.05.
    CrossNameRelease,
    /// `pool_deadlock`, rule 14.06.
    PoolDeadlock,
    /// `drop_all_on_one`, rule 14.07.
    DropAllOnOne,
    /// `error_all_other`, rule 17.01.
    ErrorAllOther,
    /// `prio_silently_ignored`, rule 17.02.
    PrioSilentlyIgnored,
    /// `claims_more_than_it_has`, rule 17.03.
    ClaimsMoreThanItHas,
    /// `panic_in_drop`, rule 17.04.
    PanicInDrop,
    /// `leaks_password`, rule 17.05.
    LeaksPassword,
    /// `error_drops_source`, rule 17.06.
    ErrorDropsSource,
    /// `caps_flap`, rule 17.07.
    CapsFlap,
    /// `no_events`, rule 17.08.
    NoEvents,
    /// `close_keeps_renewing`, rule 17.09.
    CloseKeepsRenewing,
    /// `admit_on_release_only`, rule 11.14.
    AdmitOnReleaseOnly,
    /// `mixed_limits`, rule 11.15.
    MixedLimits,
    /// `no_check_after_wait`, rule 1.05.
    NoCheckAfterWait,
    /// `deadline_from_reply`, rule 3.03.
    DeadlineFromReply,
    /// `retry_full_ttl`, rule 3.13.
    RetryFullTtl,
    /// `release_swallows_not_held`, rule 4.05.
    ReleaseSwallowsNotHeld,
    /// `renewer_survives_failed_release`, rule 4.06.
    RenewerSurvivesFailedRelease,
    /// `optimistic_renew`, rule 5.07.
    OptimisticRenew,
    /// `zombie_renewer`, rule 5.10.
    ZombieRenewer,
    /// `gives_up_on_first_error`, rule 5.11.
    GivesUpOnFirstError,
    /// `lost_fires_late`, rule 6.01.
    LostFiresLate,
    /// `lost_edge_only`, rule 6.04.
    LostEdgeOnly,
    /// `lost_single_observer`, rule 6.06.
    LostSingleObserver,
    /// `lost_recovers`, rule 6.07.
    LostRecovers,
    /// `lost_needs_poll`, rule 6.08.
    LostNeedsPoll,
    /// `lost_reply_immortal`, rule 15.01.
    LostReplyImmortal,
    /// `retry_sees_stranger`, rule 15.02.
    RetrySeesStranger,
    /// `retry_double_enqueue`, rule 15.03.
    RetryDoubleEnqueue,
    /// `retry_assumes_success`, rule 15.04.
    RetryAssumesSuccess,
    /// `io_error_is_ok`, rule 15.05.
    IoErrorIsOk,
    /// `unknown_as_failed`, rule 15.08.
    UnknownAsFailed,
    /// `no_reconnect`, rule 16.01.
    NoReconnect,
    /// `no_op_timeout`, rule 16.02.
    NoOpTimeout,
    /// `waiter_hangs_on_cut`, rule 16.03.
    WaiterHangsOnCut,
    /// `min_hold_forgotten`, rule 4.13.
    MinHoldForgotten,
    /// `inspect_shows_one`, rule 12.10.
    InspectShowsOne,
    /// `force_ends_one`, rule 12.11.
    ForceEndsOne,
    /// `no_recover_after_heal`, rule 16.15.
    NoRecoverAfterHeal,
    /// `no_recovery`, rule 16.09.
    NoRecovery,
    /// `ignores_latency`, rule 16.10.
    IgnoresLatency,
    /// `kill_leaks`, rule 16.05.
    KillLeaks,
    /// `resume_thinks_valid`, rule 16.06.
    ResumeThinksValid,
    /// `hair_trigger_loss`, rule 16.07.
    HairTriggerLoss,
    /// `chatty_acquire`, rule 2.12.
    ChattyAcquire,
    /// `stale_waiter_granted`, rule 3.09.
    StaleWaiterGranted,
    /// `release_retry_blind_delete`, rule 4.04.
    ReleaseRetryBlindDelete,
    /// `renew_at_95pct`, rule 5.12.
    RenewAt95pct,
    /// `herd_wakeup`, rule 8.10.
    HerdWakeup,
    /// `retry_double_count`, rule 10.05.
    RetryDoubleCount,
    /// `watch_silent_stall`, rule 12.05.
    WatchSilentStall,
    /// `watch_phantom`, rule 12.06.
    WatchPhantom,
    /// `delayed_release_applies`, rule 15.07.
    DelayedReleaseApplies,
    /// `no_tombstone`, rule 15.09.
    NoTombstone,
    /// `partition_blocks_all`, rule 16.13.
    PartitionBlocksAll,
    /// `lost_ignores_refusal`, rule 6.02.
    LostIgnoresRefusal,
    /// `lost_reason_constant`, rule 6.09.
    LostReasonConstant,
    /// `token_in_memory`, rule 7.06.
    TokenInMemory,
    /// `token_walltime`, rule 7.07.
    TokenWalltime,
    /// `token_i32_wrap`, rule 7.08.
    TokenI32Wrap,
    /// `resource_forgets`, rule 7.14.
    ResourceForgets,
    /// `dup_release_frees_next`, rule 15.06.
    DupReleaseFreesNext,
    /// `restart_forgets`, rule 16.08.
    RestartForgets,
    /// `server_walltime`, rule 16.11.
    ServerWalltime,
    /// `async_replica_grant`, rule 16.12.
    AsyncReplicaGrant,
    /// `corrupt_panics`, rule 16.14.
    CorruptPanics,
}

impl Bug {
    /// Every bug there is.
    pub const ALL: &'static [Self] = &[
        Self::OwnerIsPoolConnection,
        Self::RenewalNotRescheduled,
        Self::ReadersNotRenewed,
        Self::DowngradeEndsRenewal,
        Self::StaleRenewalEntry,
        Self::HeldAfterLoss,
        Self::TokenRandom,
        Self::TokenKeptOnRetake,
        Self::QueueTimeoutsDrift,
        Self::UnlockRetryFreesRelock,
        Self::LastLeaseForAll,
        Self::RenewsEveryReader,
        Self::ReadUnlockIgnoresOwner,
        Self::WaitsOnDeletedKey,
        Self::SecondLockDropsFirst,
        Self::CleanupTriedOnce,
        Self::GrantWithoutCheck,
        Self::ProcessLocalLock,
        Self::CheckThenSet,
        Self::EarlyUnlock,
        Self::OwnerFromPidTime,
        Self::OwnerIsClient,
        Self::TryBlocks,
        Self::TrySpuriousFail,
        Self::NeverWakes,
        Self::DeadlineHalf,
        Self::OrphanWaiter,
        Self::ZeroMeansForever,
        Self::TimeoutLeaksGrant,
        Self::ZeroTtlForever,
        Self::EntryLeak,
        Self::TtlU32Wrap,
        Self::HiddenDefaultTimeout,
        Self::NoExpiry,
        Self::EarlyExpiry,
        Self::CachedValidFlag,
        Self::ClientWalltimeDeadline,
        Self::ReleaseByName,
        Self::TtlStickyFirst,
        Self::ExpiryNoWakeup,
        Self::TtlRoundsDown,
        Self::TinyTtlImmortal,
        Self::NegativeMargin,
        Self::LazyRelease,
        Self::ReleaseBySession,
        Self::DoubleReleaseFreesNext,
        Self::UnlockOnOtherConn,
        Self::DropNeedsRuntime,
        Self::DropKeepsRenewing,
        Self::DropWaitsTtl,
        Self::ReleaseGrantsTwo,
        Self::ForgetIsImmortal,
        Self::RenewNoop,
        Self::RenewAdditive,
        Self::RenewResurrects,
        Self::RenewByName,
        Self::RenewRecreates,
        Self::RenewReleaseRace,
        Self::RenewBumpsToken,
        Self::AutorenewStopsAfter5,
        Self::MaxHoldIgnored,
        Self::SerialRenewerStarves,
        Self::LostOnRelease,
        Self::LostSpurious,
        Self::TokenZero,
        Self::TokenRepeats,
        Self::TokenResetOnRelease,
        Self::TokenResetOnExpiry,
        Self::TokenPerClient,
        Self::TokenBeforeGrant,
        Self::ReadTokenStale,
        Self::TokenBumpOnReenter,
        Self::ResourceAcceptsStale,
        Self::ResourceCheckThenWrite,
        Self::ZombieWriteWins,
        Self::FenceKeyLeak,
        Self::NotifyBeforeRegister,
        Self::PollEvery5s,
        Self::StarveClient0,
        Self::LifoQueue,
        Self::BargingTry,
        Self::DeadHeadBlocks,
        Self::LiveWaiterEvicted,
        Self::PrioIgnored,
        Self::PrioStarves,
        Self::WaitersCapped256,
        Self::CancelEatsWakeup,
        Self::CancelLeaksGrant,
        Self::CancelWaitsTtl,
        Self::CancelledReleaseRenews,
        Self::CancelledRenewExtends,
        Self::ReplyDesync,
        Self::WatchLeak,
        Self::CloseHangs,
        Self::ShutdownDeadlock,
        Self::ThreadAffineState,
        Self::StaleWaker,
        Self::HiddenTokio,
        Self::ReentUnbounded,
        Self::FirstReleaseFrees,
        Self::ReentForAll,
        Self::PartialLoss,
        Self::ReentByThread,
        Self::ReadersExclusive,
        Self::ReaderDuringWrite,
        Self::WriterAfterFirstReader,
        Self::ReaderExpiryFreesAll,
        Self::ReaderReleasesOther,
        Self::WriterStarved,
        Self::ReaderBarges,
        Self::CancelledWriterBlocks,
        Self::RwCrossWait,
        Self::DowngradeGap,
        Self::UpgradeDeadlock,
        Self::FailedUpgradeDropsRead,
        Self::SelfDeadlockForever,
        Self::WatchGap,
        Self::WatchReorder,
        Self::WatchMissesLast,
        Self::WatchNoExpireEvent,
        Self::WatchUnbounded,
        Self::WatchEnqueues,
        Self::WatchNoHandoff,
        Self::NameMax255,
        Self::NameTruncated,
        Self::NameHash32,
        Self::NameCaseFold,
        Self::NameTrailingSpace,
        Self::NameNfc,
        Self::NameAsPath,
        Self::NameAsGlob,
        Self::NameInterpolated,
        Self::OversizeHashed,
        Self::NamespaceConcat,
        Self::HeldCap1024,
        Self::NameGarbage,
        Self::LabelTruncated,
        Self::LimitOffBy10x,
        Self::HeadOfLine,
        Self::ClientNotConcurrent,
        Self::ReleaseBehindWaiter,
        Self::CloneSharesOwner,
        Self::CrossNameRelease,
        Self::PoolDeadlock,
        Self::DropAllOnOne,
        Self::ErrorAllOther,
        Self::PrioSilentlyIgnored,
        Self::ClaimsMoreThanItHas,
        Self::PanicInDrop,
        Self::LeaksPassword,
        Self::ErrorDropsSource,
        Self::CapsFlap,
        Self::NoEvents,
        Self::CloseKeepsRenewing,
        Self::AdmitOnReleaseOnly,
        Self::MixedLimits,
        Self::NoCheckAfterWait,
        Self::DeadlineFromReply,
        Self::RetryFullTtl,
        Self::ReleaseSwallowsNotHeld,
        Self::RenewerSurvivesFailedRelease,
        Self::OptimisticRenew,
        Self::ZombieRenewer,
        Self::GivesUpOnFirstError,
        Self::LostFiresLate,
        Self::LostEdgeOnly,
        Self::LostSingleObserver,
        Self::LostRecovers,
        Self::LostNeedsPoll,
        Self::LostReplyImmortal,
        Self::RetrySeesStranger,
        Self::RetryDoubleEnqueue,
        Self::RetryAssumesSuccess,
        Self::IoErrorIsOk,
        Self::UnknownAsFailed,
        Self::NoReconnect,
        Self::NoOpTimeout,
        Self::WaiterHangsOnCut,
        Self::MinHoldForgotten,
        Self::InspectShowsOne,
        Self::ForceEndsOne,
        Self::NoRecoverAfterHeal,
        Self::NoRecovery,
        Self::IgnoresLatency,
        Self::KillLeaks,
        Self::ResumeThinksValid,
        Self::HairTriggerLoss,
        Self::ChattyAcquire,
        Self::StaleWaiterGranted,
        Self::ReleaseRetryBlindDelete,
        Self::RenewAt95pct,
        Self::HerdWakeup,
        Self::RetryDoubleCount,
        Self::WatchSilentStall,
        Self::WatchPhantom,
        Self::DelayedReleaseApplies,
        Self::NoTombstone,
        Self::PartitionBlocksAll,
        Self::LostIgnoresRefusal,
        Self::LostReasonConstant,
        Self::TokenInMemory,
        Self::TokenWalltime,
        Self::TokenI32Wrap,
        Self::ResourceForgets,
        Self::DupReleaseFreesNext,
        Self::RestartForgets,
        Self::ServerWalltime,
        Self::AsyncReplicaGrant,
        Self::CorruptPanics,
    ];

    /// The rule that must catch it.
    pub const fn rule(self) -> &'static str {
        match self {
            Self::OwnerIsPoolConnection => "1.07",
            Self::RenewalNotRescheduled => "5.11",
            Self::ReadersNotRenewed => "5.09",
            Self::DowngradeEndsRenewal => "5.09",
            Self::StaleRenewalEntry => "5.09",
            Self::HeldAfterLoss => "5.09",
            Self::TokenRandom => "7.02",
            Self::TokenKeptOnRetake => "7.04",
            Self::QueueTimeoutsDrift => "8.06",
            Self::UnlockRetryFreesRelock => "4.04",
            Self::LastLeaseForAll => "11.04",
            Self::RenewsEveryReader => "11.04",
            Self::ReadUnlockIgnoresOwner => "11.05",
            Self::WaitsOnDeletedKey => "11.09",
            Self::SecondLockDropsFirst => "13.02",
            Self::CleanupTriedOnce => "15.08",
            Self::GrantWithoutCheck => "1.01",
            Self::ProcessLocalLock => "1.02",
            Self::CheckThenSet => "1.03",
            Self::EarlyUnlock => "1.04",
            Self::OwnerFromPidTime => "1.06",
            Self::OwnerIsClient => "1.07",
            Self::TryBlocks => "2.01",
            Self::TrySpuriousFail => "2.02",
            Self::NeverWakes => "2.03",
            Self::DeadlineHalf => "2.04",
            Self::OrphanWaiter => "2.05",
            Self::ZeroMeansForever => "2.06",
            Self::TimeoutLeaksGrant => "2.07",
            Self::ZeroTtlForever => "2.08",
            Self::EntryLeak => "2.09",
            Self::TtlU32Wrap => "2.10",
            Self::HiddenDefaultTimeout => "2.11",
            Self::NoExpiry => "3.01",
            Self::EarlyExpiry => "3.02",
            Self::CachedValidFlag => "3.04",
            Self::ClientWalltimeDeadline => "3.05",
            Self::ReleaseByName => "3.06",
            Self::TtlStickyFirst => "3.07",
            Self::ExpiryNoWakeup => "3.08",
            Self::TtlRoundsDown => "3.10",
            Self::TinyTtlImmortal => "3.11",
            Self::NegativeMargin => "3.12",
            Self::LazyRelease => "4.01",
            Self::ReleaseBySession => "4.02",
            Self::DoubleReleaseFreesNext => "4.03",
            Self::UnlockOnOtherConn => "4.07",
            Self::DropNeedsRuntime => "4.08",
            Self::DropKeepsRenewing => "4.09",
            Self::DropWaitsTtl => "4.10",
            Self::ReleaseGrantsTwo => "4.11",
            Self::ForgetIsImmortal => "4.12",
            Self::RenewNoop => "5.01",
            Self::RenewAdditive => "5.02",
            Self::RenewResurrects => "5.03",
            Self::RenewByName => "5.04",
            Self::RenewRecreates => "5.05",
            Self::RenewReleaseRace => "5.06",
            Self::RenewBumpsToken => "5.08",
            Self::AutorenewStopsAfter5 => "5.09",
            Self::MaxHoldIgnored => "5.13",
            Self::SerialRenewerStarves => "5.14",
            Self::LostOnRelease => "6.03",
            Self::LostSpurious => "6.05",
            Self::TokenZero => "7.01",
            Self::TokenRepeats => "7.02",
            Self::TokenResetOnRelease => "7.03",
            Self::TokenResetOnExpiry => "7.04",
            Self::TokenPerClient => "7.05",
            Self::TokenBeforeGrant => "7.09",
            Self::ReadTokenStale => "7.11",
            Self::TokenBumpOnReenter => "7.10",
            Self::ResourceAcceptsStale => "7.12",
            Self::ResourceCheckThenWrite => "7.13",
            Self::ZombieWriteWins => "7.15",
            Self::FenceKeyLeak => "7.16",
            Self::NotifyBeforeRegister => "8.01",
            Self::PollEvery5s => "8.02",
            Self::StarveClient0 => "8.03",
            Self::LifoQueue => "8.04",
            Self::BargingTry => "8.05",
            Self::DeadHeadBlocks => "8.06",
            Self::LiveWaiterEvicted => "8.07",
            Self::PrioIgnored => "8.08",
            Self::PrioStarves => "8.09",
            Self::WaitersCapped256 => "8.11",
            Self::CancelEatsWakeup => "8.12",
            Self::CancelLeaksGrant => "9.01",
            Self::CancelWaitsTtl => "9.02",
            Self::CancelledReleaseRenews => "9.03",
            Self::CancelledRenewExtends => "9.04",
            Self::ReplyDesync => "9.05",
            Self::WatchLeak => "9.06",
            Self::CloseHangs => "9.07",
            Self::ShutdownDeadlock => "9.08",
            Self::ThreadAffineState => "9.09",
            Self::StaleWaker => "9.10",
            Self::HiddenTokio => "9.11",
            Self::ReentUnbounded => "10.01",
            Self::FirstReleaseFrees => "10.02",
            Self::ReentForAll => "10.03",
            Self::PartialLoss => "10.04",
            Self::ReentByThread => "10.06",
            Self::ReadersExclusive => "11.01",
            Self::ReaderDuringWrite => "11.02",
            Self::WriterAfterFirstReader => "11.03",
            Self::ReaderExpiryFreesAll => "11.04",
            Self::ReaderReleasesOther => "11.05",
            Self::WriterStarved => "11.06",
            Self::ReaderBarges => "11.07",
            Self::CancelledWriterBlocks => "11.08",
            Self::RwCrossWait => "11.09",
            Self::DowngradeGap => "11.10",
            Self::UpgradeDeadlock => "11.11",
            Self::FailedUpgradeDropsRead => "11.12",
            Self::SelfDeadlockForever => "11.13",
            Self::WatchGap => "12.01",
            Self::WatchReorder => "12.02",
            Self::WatchMissesLast => "12.03",
            Self::WatchNoExpireEvent => "12.04",
            Self::WatchUnbounded => "12.07",
            Self::WatchEnqueues => "12.08",
            Self::WatchNoHandoff => "12.09",
            Self::NameMax255 => "13.01",
            Self::NameTruncated => "13.02",
            Self::NameHash32 => "13.03",
            Self::NameCaseFold => "13.04",
            Self::NameTrailingSpace => "13.05",
            Self::NameNfc => "13.06",
            Self::NameAsPath => "13.07",
            Self::NameAsGlob => "13.08",
            Self::NameInterpolated => "13.09",
            Self::OversizeHashed => "13.10",
            Self::NamespaceConcat => "13.11",
            Self::HeldCap1024 => "13.12",
            Self::NameGarbage => "13.13",
            Self::LabelTruncated => "13.14",
            Self::LimitOffBy10x => "13.15",
            Self::HeadOfLine => "14.01",
            Self::ClientNotConcurrent => "14.02",
            Self::ReleaseBehindWaiter => "14.03",
            Self::CloneSharesOwner => "14.04",
            Self::CrossNameRelease => "14.05",
            Self::PoolDeadlock => "14.06",
            Self::DropAllOnOne => "14.07",
            Self::ErrorAllOther => "17.01",
            Self::PrioSilentlyIgnored => "17.02",
            Self::ClaimsMoreThanItHas => "17.03",
            Self::PanicInDrop => "17.04",
            Self::LeaksPassword => "17.05",
            Self::ErrorDropsSource => "17.06",
            Self::CapsFlap => "17.07",
            Self::NoEvents => "17.08",
            Self::CloseKeepsRenewing => "17.09",
            Self::AdmitOnReleaseOnly => "11.14",
            Self::MixedLimits => "11.15",
            Self::NoCheckAfterWait => "1.05",
            Self::DeadlineFromReply => "3.03",
            Self::RetryFullTtl => "3.13",
            Self::ReleaseSwallowsNotHeld => "4.05",
            Self::RenewerSurvivesFailedRelease => "4.06",
            Self::OptimisticRenew => "5.07",
            Self::ZombieRenewer => "5.10",
            Self::GivesUpOnFirstError => "5.11",
            Self::LostFiresLate => "6.01",
            Self::LostEdgeOnly => "6.04",
            Self::LostSingleObserver => "6.06",
            Self::LostRecovers => "6.07",
            Self::LostNeedsPoll => "6.08",
            Self::LostReplyImmortal => "15.01",
            Self::RetrySeesStranger => "15.02",
            Self::RetryDoubleEnqueue => "15.03",
            Self::RetryAssumesSuccess => "15.04",
            Self::IoErrorIsOk => "15.05",
            Self::UnknownAsFailed => "15.08",
            Self::NoReconnect => "16.01",
            Self::NoOpTimeout => "16.02",
            Self::WaiterHangsOnCut => "16.03",
            Self::MinHoldForgotten => "4.13",
            Self::InspectShowsOne => "12.10",
            Self::ForceEndsOne => "12.11",
            Self::NoRecoverAfterHeal => "16.15",
            Self::NoRecovery => "16.09",
            Self::IgnoresLatency => "16.10",
            Self::KillLeaks => "16.05",
            Self::ResumeThinksValid => "16.06",
            Self::HairTriggerLoss => "16.07",
            Self::ChattyAcquire => "2.12",
            Self::StaleWaiterGranted => "3.09",
            Self::ReleaseRetryBlindDelete => "4.04",
            Self::RenewAt95pct => "5.12",
            Self::HerdWakeup => "8.10",
            Self::RetryDoubleCount => "10.05",
            Self::WatchSilentStall => "12.05",
            Self::WatchPhantom => "12.06",
            Self::DelayedReleaseApplies => "15.07",
            Self::NoTombstone => "15.09",
            Self::PartitionBlocksAll => "16.13",
            Self::LostIgnoresRefusal => "6.02",
            Self::LostReasonConstant => "6.09",
            Self::TokenInMemory => "7.06",
            Self::TokenWalltime => "7.07",
            Self::TokenI32Wrap => "7.08",
            Self::ResourceForgets => "7.14",
            Self::DupReleaseFreesNext => "15.06",
            Self::RestartForgets => "16.08",
            Self::ServerWalltime => "16.11",
            Self::AsyncReplicaGrant => "16.12",
            Self::CorruptPanics => "16.14",
        }
    }

    /// Its name in the catalogue.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OwnerIsPoolConnection => "owner_is_pool_connection",
            Self::RenewalNotRescheduled => "renewal_not_rescheduled",
            Self::ReadersNotRenewed => "readers_not_renewed",
            Self::DowngradeEndsRenewal => "downgrade_ends_renewal",
            Self::StaleRenewalEntry => "stale_renewal_entry",
            Self::HeldAfterLoss => "held_after_loss",
            Self::TokenRandom => "token_random",
            Self::TokenKeptOnRetake => "token_kept_on_retake",
            Self::QueueTimeoutsDrift => "queue_timeouts_drift",
            Self::UnlockRetryFreesRelock => "unlock_retry_frees_relock",
            Self::LastLeaseForAll => "last_lease_for_all",
            Self::RenewsEveryReader => "renews_every_reader",
            Self::ReadUnlockIgnoresOwner => "read_unlock_ignores_owner",
            Self::WaitsOnDeletedKey => "waits_on_deleted_key",
            Self::SecondLockDropsFirst => "second_lock_drops_first",
            Self::CleanupTriedOnce => "cleanup_tried_once",
            Self::GrantWithoutCheck => "grant_without_check",
            Self::ProcessLocalLock => "process_local_lock",
            Self::CheckThenSet => "check_then_set",
            Self::EarlyUnlock => "early_unlock",
            Self::OwnerFromPidTime => "owner_from_pid_time",
            Self::OwnerIsClient => "owner_is_client",
            Self::TryBlocks => "try_blocks",
            Self::TrySpuriousFail => "try_spurious_fail",
            Self::NeverWakes => "never_wakes",
            Self::DeadlineHalf => "deadline_half",
            Self::OrphanWaiter => "orphan_waiter",
            Self::ZeroMeansForever => "zero_means_forever",
            Self::TimeoutLeaksGrant => "timeout_leaks_grant",
            Self::ZeroTtlForever => "zero_ttl_forever",
            Self::EntryLeak => "entry_leak",
            Self::TtlU32Wrap => "ttl_u32_wrap",
            Self::HiddenDefaultTimeout => "hidden_default_timeout",
            Self::NoExpiry => "no_expiry",
            Self::EarlyExpiry => "early_expiry",
            Self::CachedValidFlag => "cached_valid_flag",
            Self::ClientWalltimeDeadline => "client_walltime_deadline",
            Self::ReleaseByName => "release_by_name",
            Self::TtlStickyFirst => "ttl_sticky_first",
            Self::ExpiryNoWakeup => "expiry_no_wakeup",
            Self::TtlRoundsDown => "ttl_rounds_down",
            Self::TinyTtlImmortal => "tiny_ttl_immortal",
            Self::NegativeMargin => "negative_margin",
            Self::LazyRelease => "lazy_release",
            Self::ReleaseBySession => "release_by_session",
            Self::DoubleReleaseFreesNext => "double_release_frees_next",
            Self::UnlockOnOtherConn => "unlock_on_other_conn",
            Self::DropNeedsRuntime => "drop_needs_runtime",
            Self::DropKeepsRenewing => "drop_keeps_renewing",
            Self::DropWaitsTtl => "drop_waits_ttl",
            Self::ReleaseGrantsTwo => "release_grants_two",
            Self::ForgetIsImmortal => "forget_is_immortal",
            Self::RenewNoop => "renew_noop",
            Self::RenewAdditive => "renew_additive",
            Self::RenewResurrects => "renew_resurrects",
            Self::RenewByName => "renew_by_name",
            Self::RenewRecreates => "renew_recreates",
            Self::RenewReleaseRace => "renew_release_race",
            Self::RenewBumpsToken => "renew_bumps_token",
            Self::AutorenewStopsAfter5 => "autorenew_stops_after_5",
            Self::MaxHoldIgnored => "max_hold_ignored",
            Self::SerialRenewerStarves => "serial_renewer_starves",
            Self::LostOnRelease => "lost_on_release",
            Self::LostSpurious => "lost_spurious",
            Self::TokenZero => "token_zero",
            Self::TokenRepeats => "token_repeats",
            Self::TokenResetOnRelease => "token_reset_on_release",
            Self::TokenResetOnExpiry => "token_reset_on_expiry",
            Self::TokenPerClient => "token_per_client",
            Self::TokenBeforeGrant => "token_before_grant",
            Self::ReadTokenStale => "read_token_stale",
            Self::TokenBumpOnReenter => "token_bump_on_reenter",
            Self::ResourceAcceptsStale => "resource_accepts_stale",
            Self::ResourceCheckThenWrite => "resource_check_then_write",
            Self::ZombieWriteWins => "zombie_write_wins",
            Self::FenceKeyLeak => "fence_key_leak",
            Self::NotifyBeforeRegister => "notify_before_register",
            Self::PollEvery5s => "poll_every_5s",
            Self::StarveClient0 => "starve_client_0",
            Self::LifoQueue => "lifo_queue",
            Self::BargingTry => "barging_try",
            Self::DeadHeadBlocks => "dead_head_blocks",
            Self::LiveWaiterEvicted => "live_waiter_evicted",
            Self::PrioIgnored => "prio_ignored",
            Self::PrioStarves => "prio_starves",
            Self::WaitersCapped256 => "waiters_capped_256",
            Self::CancelEatsWakeup => "cancel_eats_wakeup",
            Self::CancelLeaksGrant => "cancel_leaks_grant",
            Self::CancelWaitsTtl => "cancel_waits_ttl",
            Self::CancelledReleaseRenews => "cancelled_release_renews",
            Self::CancelledRenewExtends => "cancelled_renew_extends",
            Self::ReplyDesync => "reply_desync",
            Self::WatchLeak => "watch_leak",
            Self::CloseHangs => "close_hangs",
            Self::ShutdownDeadlock => "shutdown_deadlock",
            Self::ThreadAffineState => "thread_affine_state",
            Self::StaleWaker => "stale_waker",
            Self::HiddenTokio => "hidden_tokio",
            Self::ReentUnbounded => "reent_unbounded",
            Self::FirstReleaseFrees => "first_release_frees",
            Self::ReentForAll => "reent_for_all",
            Self::PartialLoss => "partial_loss",
            Self::ReentByThread => "reent_by_thread",
            Self::ReadersExclusive => "readers_exclusive",
            Self::ReaderDuringWrite => "reader_during_write",
            Self::WriterAfterFirstReader => "writer_after_first_reader",
            Self::ReaderExpiryFreesAll => "reader_expiry_frees_all",
            Self::ReaderReleasesOther => "reader_releases_other",
            Self::WriterStarved => "writer_starved",
            Self::ReaderBarges => "reader_barges",
            Self::CancelledWriterBlocks => "cancelled_writer_blocks",
            Self::RwCrossWait => "rw_cross_wait",
            Self::DowngradeGap => "downgrade_gap",
            Self::UpgradeDeadlock => "upgrade_deadlock",
            Self::FailedUpgradeDropsRead => "failed_upgrade_drops_read",
            Self::SelfDeadlockForever => "self_deadlock_forever",
            Self::WatchGap => "watch_gap",
            Self::WatchReorder => "watch_reorder",
            Self::WatchMissesLast => "watch_misses_last",
            Self::WatchNoExpireEvent => "watch_no_expire_event",
            Self::WatchUnbounded => "watch_unbounded",
            Self::WatchEnqueues => "watch_enqueues",
            Self::WatchNoHandoff => "watch_no_handoff",
            Self::NameMax255 => "name_max_255",
            Self::NameTruncated => "name_truncated",
            Self::NameHash32 => "name_hash32",
            Self::NameCaseFold => "name_case_fold",
            Self::NameTrailingSpace => "name_trailing_space",
            Self::NameNfc => "name_nfc",
            Self::NameAsPath => "name_as_path",
            Self::NameAsGlob => "name_as_glob",
            Self::NameInterpolated => "name_interpolated",
            Self::OversizeHashed => "oversize_hashed",
            Self::NamespaceConcat => "namespace_concat",
            Self::HeldCap1024 => "held_cap_1024",
            Self::NameGarbage => "name_garbage",
            Self::LabelTruncated => "label_truncated",
            Self::LimitOffBy10x => "limit_off_by_10x",
            Self::HeadOfLine => "head_of_line",
            Self::ClientNotConcurrent => "client_not_concurrent",
            Self::ReleaseBehindWaiter => "release_behind_waiter",
            Self::CloneSharesOwner => "clone_shares_owner",
            Self::CrossNameRelease => "cross_name_release",
            Self::PoolDeadlock => "pool_deadlock",
            Self::DropAllOnOne => "drop_all_on_one",
            Self::ErrorAllOther => "error_all_other",
            Self::PrioSilentlyIgnored => "prio_silently_ignored",
            Self::ClaimsMoreThanItHas => "claims_more_than_it_has",
            Self::PanicInDrop => "panic_in_drop",
            Self::LeaksPassword => "leaks_password",
            Self::ErrorDropsSource => "error_drops_source",
            Self::CapsFlap => "caps_flap",
            Self::NoEvents => "no_events",
            Self::CloseKeepsRenewing => "close_keeps_renewing",
            Self::AdmitOnReleaseOnly => "admit_on_release_only",
            Self::MixedLimits => "mixed_limits",
            Self::NoCheckAfterWait => "no_check_after_wait",
            Self::DeadlineFromReply => "deadline_from_reply",
            Self::RetryFullTtl => "retry_full_ttl",
            Self::ReleaseSwallowsNotHeld => "release_swallows_not_held",
            Self::RenewerSurvivesFailedRelease => "renewer_survives_failed_release",
            Self::OptimisticRenew => "optimistic_renew",
            Self::ZombieRenewer => "zombie_renewer",
            Self::GivesUpOnFirstError => "gives_up_on_first_error",
            Self::LostFiresLate => "lost_fires_late",
            Self::LostEdgeOnly => "lost_edge_only",
            Self::LostSingleObserver => "lost_single_observer",
            Self::LostRecovers => "lost_recovers",
            Self::LostNeedsPoll => "lost_needs_poll",
            Self::LostReplyImmortal => "lost_reply_immortal",
            Self::RetrySeesStranger => "retry_sees_stranger",
            Self::RetryDoubleEnqueue => "retry_double_enqueue",
            Self::RetryAssumesSuccess => "retry_assumes_success",
            Self::IoErrorIsOk => "io_error_is_ok",
            Self::UnknownAsFailed => "unknown_as_failed",
            Self::NoReconnect => "no_reconnect",
            Self::NoOpTimeout => "no_op_timeout",
            Self::WaiterHangsOnCut => "waiter_hangs_on_cut",
            Self::MinHoldForgotten => "min_hold_forgotten",
            Self::InspectShowsOne => "inspect_shows_one",
            Self::ForceEndsOne => "force_ends_one",
            Self::NoRecoverAfterHeal => "no_recover_after_heal",
            Self::NoRecovery => "no_recovery",
            Self::IgnoresLatency => "ignores_latency",
            Self::KillLeaks => "kill_leaks",
            Self::ResumeThinksValid => "resume_thinks_valid",
            Self::HairTriggerLoss => "hair_trigger_loss",
            Self::ChattyAcquire => "chatty_acquire",
            Self::StaleWaiterGranted => "stale_waiter_granted",
            Self::ReleaseRetryBlindDelete => "release_retry_blind_delete",
            Self::RenewAt95pct => "renew_at_95pct",
            Self::HerdWakeup => "herd_wakeup",
            Self::RetryDoubleCount => "retry_double_count",
            Self::WatchSilentStall => "watch_silent_stall",
            Self::WatchPhantom => "watch_phantom",
            Self::DelayedReleaseApplies => "delayed_release_applies",
            Self::NoTombstone => "no_tombstone",
            Self::PartitionBlocksAll => "partition_blocks_all",
            Self::LostIgnoresRefusal => "lost_ignores_refusal",
            Self::LostReasonConstant => "lost_reason_constant",
            Self::TokenInMemory => "token_in_memory",
            Self::TokenWalltime => "token_walltime",
            Self::TokenI32Wrap => "token_i32_wrap",
            Self::ResourceForgets => "resource_forgets",
            Self::DupReleaseFreesNext => "dup_release_frees_next",
            Self::RestartForgets => "restart_forgets",
            Self::ServerWalltime => "server_walltime",
            Self::AsyncReplicaGrant => "async_replica_grant",
            Self::CorruptPanics => "corrupt_panics",
        }
    }
}

/// Which bug is planted, if any.
#[cfg(dlock_saboteur)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted(Option<Bug>);

#[cfg(dlock_saboteur)]
impl Planted {
    /// No bug.
    pub const NONE: Self = Self(None);

    /// Plants a bug.
    pub const fn new(bug: Bug) -> Self {
        Self(Some(bug))
    }

    /// Whether that bug is planted.
    pub fn is(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }
}

/// Which bug is planted: none, in this build.
#[cfg(not(dlock_saboteur))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted;

#[cfg(not(dlock_saboteur))]
impl Planted {
    /// No bug.
    pub const NONE: Self = Self;

    /// Always `false` in this build.
    #[inline(always)]
    pub const fn is(self, _: Bug) -> bool {
        false
    }
}
